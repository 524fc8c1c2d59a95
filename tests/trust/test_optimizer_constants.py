"""An optimizer that derives its constants in float32 is right; one that derives others is wrong."""

import copy

import numpy as np
import pytest

import firstdrift as fd

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01
STEPS = 3
WRONG = ["no correction", "another beta", "step count", "eps before the correction", "learning rate"]


class Adam(torch.optim.Optimizer):
    """AdamW as code in float32 writes it. `all_short` also weighs gradients by what float32 leaves of 1 less beta."""

    def __init__(self, parameters, all_short=False, wrong=""):
        super().__init__(parameters, {})
        self.all_short, self.wrong = all_short, wrong

    @torch.no_grad()
    def step(self, closure=None):
        kind = np.float32 if self.all_short else np.float64
        betas = (BETAS[0], 0.998) if self.wrong == "another beta" else BETAS
        for weight in (one for group in self.param_groups for one in group["params"]):
            state = self.state[weight]
            state["step"] = count = state.get("step", 0) + 1
            for name, beta, grad in zip(
                ("exp_avg", "exp_avg_sq"), betas, (weight.grad, weight.grad * weight.grad), strict=True
            ):
                before = state.get(name, torch.zeros_like(weight))
                state[name] = beta * before + float(1 - kind(beta)) * grad
            weight.copy_(weight - self.moved(weight, state, count, betas))

    def moved(self, weight, state, count, betas):
        count += self.wrong == "step count"
        first, second = (float(1 - np.float32(beta) ** np.float32(count)) for beta in betas)
        if self.wrong == "no correction":
            first = second = 1.0
        root = (state["exp_avg_sq"] / second).sqrt()
        eps = EPS / second**0.5 if self.wrong == "eps before the correction" else EPS
        rate = LR * 1.002 if self.wrong == "learning rate" else LR
        return rate * (state["exp_avg"] / first / (root + eps) + DECAY * weight)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 24))


def theirs(model):
    return torch.optim.AdamW(model.parameters(), LR, BETAS, EPS, DECAY)


def trained(path, make, program):
    model = network()
    optimizer, rng = make(model), torch.Generator().manual_seed(1)
    with fd.trace(model, path, optimizer=optimizer, program=program):
        for _ in range(STEPS):
            optimizer.zero_grad()
            x, y = torch.randn(16, 24, generator=rng), torch.randn(16, 24, generator=rng)
            nn.functional.mse_loss(model(1e-3 * x), 1e-3 * y).backward()
            optimizer.step()
    return path


def compared(tmp_path, program=True, **other):
    ref = trained(tmp_path / "ref", theirs, program)
    return fd.diff(ref, trained(tmp_path / "cand", lambda model: Adam(model.parameters(), **other), program))


def checked(**other):
    model, rng = network(), torch.Generator().manual_seed(1)
    x, y = 1e-3 * torch.randn(16, 24, generator=rng), 1e-3 * torch.randn(16, 24, generator=rng)
    return fd.check(
        reference=model, candidate=copy.deepcopy(model), inputs=(x,), target=y, loss_fn=nn.functional.mse_loss,
        optimizer=theirs, candidate_optimizer=lambda own: Adam(own.parameters(), **other), steps=STEPS,
    )  # fmt: skip


@pytest.mark.parametrize("all_short", [False, True])
@pytest.mark.parametrize("program", [True, False])
def test_constants_derived_in_float32_are_noise(tmp_path, program, all_short):
    result = compared(tmp_path, program, all_short=all_short)
    stepped = [one for one in result.pairs if one.site.phase in ("optim", "weight_after")]
    assert {one.verdict.value for one in stepped} == {"same", "noise"}
    assert result.exit_code == 0 or not program  # without one, nobody knows how a loss was made


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("program", [True, False])
def test_other_constants_are_a_drift(tmp_path, program, wrong):
    result = compared(tmp_path, program, wrong=wrong)
    assert result.exit_code == 1
    assert result.first_drift.introduced_by == "the optimizer"


@pytest.mark.parametrize("all_short", [False, True])
def test_check_knows_constants_that_were_derived_in_float32(all_short):
    assert checked(all_short=all_short).exit_code == 0


@pytest.mark.parametrize("wrong", WRONG)
def test_check_finds_other_constants(wrong):
    assert checked(wrong=wrong).exit_code == 1


def test_what_only_the_rounding_of_a_constant_may_explain_is_left_open(tmp_path):
    """Where nobody says how an update was made: here by an optimizer that no library has."""
    own = trained(tmp_path / "ref", lambda model: Adam(model.parameters()), program=False)
    result = fd.diff(own, trained(tmp_path / "cand", theirs, program=False))
    assert result.exit_code == 2


@pytest.mark.parametrize("wrong", WRONG)
def test_what_no_rounding_of_a_constant_explains_is_a_drift_without_a_program(tmp_path, wrong):
    own = trained(tmp_path / "ref", lambda model: Adam(model.parameters(), wrong=wrong), program=False)
    assert fd.diff(own, trained(tmp_path / "cand", theirs, program=False)).exit_code == 1
