"""Bugs in a step, in a buffer's update, in a loss and in a gradient: both sides are written differently."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import firstdrift as fd

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])
LR = 0.01


class Step(torch.optim.Optimizer):
    """`rule` moves one parameter by its gradient, with states that `new` begins with zeros."""

    def __init__(self, params, rule, lr=LR, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})
        self.rule = rule

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                self.rule(p, p.grad, state)


def new(state, name, p):
    return state.setdefault(name, torch.zeros_like(p))


def nesterov(p, g, state):
    b = new(state, "b", p)
    b.mul_(0.9).add_(g)
    p.add_(g + 0.9 * b, alpha=-LR)


def nesterov_of_before(p, g, state):
    b = new(state, "b", p)
    step = g.add(b, alpha=0.9)
    b.copy_(b * 0.9 + g)
    p.sub_(step * LR)


def averaged(p, g, state):
    m = new(state, "m", p)
    m.mul_(0.9).add_(g)
    p.add_(m.clone().clamp_(-0.05, 0.05), alpha=-LR)


def averaged_in_place(p, g, state):
    m = new(state, "m", p)
    m.copy_(0.9 * m + g)
    p.sub_(LR * m.clamp_(-0.05, 0.05))


def squares(p, g, state):
    s = new(state, "s", p)
    s.addcmul_(g, g)
    p.addcdiv_(g, s.sqrt().add_(1e-2), value=-LR)


def squares_begun_anew(p, g, state):
    s = new(state, "s", p)
    s.copy_(g**2)
    p.sub_(LR * g / (torch.sqrt(s) + 1e-2))


def corrected(p, g, state):
    v = new(state, "v", p)
    v.mul_(0.99).addcmul_(g, g, value=1 - 0.99)
    p.addcdiv_(g, (v / (1 - 0.99 ** state["count"])).sqrt() + 1e-3, value=-LR)


def corrected_twice(p, g, state):
    v = new(state, "v", p)
    v.lerp_(g * g, 1 - 0.99)
    p.sub_(LR * g / (torch.sqrt(v / (1 - 0.99 ** (2 * state["count"]))) + 1e-3))


def decayed(p, g, state):
    m = new(state, "m", p)
    p.mul_(1 - LR * 0.1)
    m.lerp_(g, 0.1)
    p.add_(m.sign(), alpha=-LR)


def decayed_without_rate(p, g, state):
    m = new(state, "m", p)
    m.mul_(0.9).add_(g, alpha=0.1)
    p.copy_(p * (1 - 0.1) - LR * torch.sign(m))


def normed(p, g, state):
    m = new(state, "m", p)
    m.lerp_(g, 0.1)
    p.add_(m / (m.norm() + 1e-6), alpha=-LR)


def not_normed(p, g, state):
    m = new(state, "m", p)
    m.mul_(0.9).add_(g, alpha=0.1)
    p.sub_(LR * m)


def frozen_state(p, g, state):
    m = new(state, "m", p)
    p.add_(m.lerp(g, 0.1), alpha=-LR)


def moving_state(p, g, state):
    m = new(state, "m", p)
    m.lerp_(g, 0.1)
    p.add_(m, alpha=-LR)


STEPS = {
    "stale": (nesterov, nesterov_of_before, "stale-buffer", "read as it was before the step (zero)"),
    "in place": (averaged, averaged_in_place, "clamp", "in place, where the reference works on a copy"),
    "anew": (squares, squares_begun_anew, "optimizer-momentum", "is begun anew"),
    "correction": (corrected, corrected_twice, "optimizer-bias-correction", "instead of 0.01"),
    "decay": (decayed, decayed_without_rate, "weight-decay-coupling", "0.9 instead of 0.999"),
    "norm": (normed, not_normed, "skipped-op", "left out"),
    "not moved": (moving_state, frozen_state, "skipped-op", "did not update this state, nor 3 of 3 others"),
}


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 5))


def of_training(tmp_path, reference, candidate, ours=None, theirs=None, steps=3):
    candidate.load_state_dict(reference.state_dict())
    for name, model, made in (("reference", reference, ours), ("candidate", candidate, theirs)):
        optimizer = None if made is None else made(model.parameters())
        with fd.trace(model, tmp_path / name, optimizer=optimizer):
            for _ in range(steps if optimizer else 1):
                model.zero_grad()
                out = model(X)
                (out if out.ndim == 0 else (out - 0.7).square().mean()).backward()
                if optimizer:
                    optimizer.step()
    return fd.diff(tmp_path / "reference", tmp_path / "candidate").first_drift


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_explained_by_the_change_of_its_calls(tmp_path, name):
    ours, theirs, label, said = STEPS[name]
    first = of_training(tmp_path, network(), network(), lambda p: Step(p, ours), lambda p: Step(p, theirs))
    assert first.phase in ("optim", "weight_after")
    assert first.cause.label == label, first.cause
    assert said in first.cause.sentence


class Loss(nn.Module):
    """A layer and a loss of one number; `loss` of the layer's output and a second layer's."""

    def __init__(self, loss):
        super().__init__()
        torch.manual_seed(5)
        self.linear, self.head, self.loss = nn.Linear(6, 5), nn.Linear(5, 5), loss

    def forward(self, x):
        z = self.linear(x)
        return self.loss(z, self.head(z))


def variance(z, p):
    centred = z - z.mean(0)
    return (centred.t() @ centred / (len(z) - 1)).square().sum() + p.square().mean()


def variance_of_all(z, p):
    centred = z - z.mean(dim=0, keepdim=True)
    return torch.einsum("ni,nj->ij", centred, centred).div(len(z)).square().sum() + (p * p).mean()


def two_terms(z, p):
    return F.cross_entropy(z, LABELS) + 0.25 * p.square().mean()


def first_term(z, p):
    logs = z.log_softmax(-1)
    return -logs.gather(1, LABELS[:, None]).mean()


def similar(z, p):
    return -F.cosine_similarity(p, z.detach(), dim=-1).mean()


def similar_both_ways(z, p):
    return -(F.normalize(p, dim=-1) * F.normalize(z, dim=-1)).sum(-1).mean()


LOSSES = {
    "divisor": (variance, variance_of_all, ("scale", "reduction-scale"), "divided by 8 instead of 7"),
    "term": (two_terms, first_term, ("missing-term",), "is not added"),
    "detached": (similar, similar_both_ways, ("gradient-formula",), "the reference detaches it (test_named_steps.py:"),
    "cut": (similar_both_ways, similar, ("gradient-missing",), "lacks a term"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_one_number_is_explained_by_the_change_of_its_calls(tmp_path, name):
    ours, theirs, labels, said = LOSSES[name]
    cause = of_training(tmp_path, Loss(ours), Loss(theirs)).cause
    assert cause.label in labels, cause
    assert said in cause.sentence


class Average(nn.Module):
    """A running average of what comes in, that nothing reads."""

    def __init__(self, way=""):
        super().__init__()
        self.linear, self.way = nn.Linear(6, 5), way
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x):
        z = self.linear(x)
        if self.way == "exchanged":
            self.mean.copy_(self.mean * 0.1 + z.detach().mean(dim=0) * 0.9)
        elif self.way != "still":
            self.mean.lerp_(z.detach().mean(0), 0.1)
        return z


@pytest.mark.parametrize(
    ("way", "label", "said"),
    [("exchanged", "batchnorm-momentum", "0.9 instead of 0.1"), ("still", "skipped-op", "did not update this buffer")],
)
def test_the_update_of_a_buffer_is_no_matter_of_a_learning_rate(tmp_path, way, label, said):
    made = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    cause = of_training(tmp_path, Average(), Average(way), made, made).cause
    assert cause.label == label, cause
    assert said in cause.sentence


def test_a_factor_of_one_state_that_differs_by_parameter_is_no_momentum(tmp_path):
    def masked(p, g, state):
        m = new(state, "exp_avg", p)
        m.mul_(0.9).add_(g, alpha=1 - 0.9)
        u = m if masked.in_place else m.clone()
        mask = (u * g > 0).to(u.dtype)
        p.add_(u.mul_(mask.mul_(mask.numel() / (mask.sum() + 1))), alpha=-LR)

    def in_place(p, g, state):
        masked.in_place = True
        masked(p, g, state)
        masked.in_place = False

    masked.in_place = False
    first = of_training(tmp_path, network(), network(), lambda p: Step(p, masked), lambda p: Step(p, in_place))
    assert first.cause.label == "changed-call", first.cause
    assert "by a mask" in first.cause.sentence


class Summed(nn.Module):
    """The logarithm of a sum of exponentials, in steps or at once."""

    def __init__(self, in_steps):
        super().__init__()
        self.linear, self.in_steps = nn.Linear(6, 5), in_steps

    def forward(self, x):
        z = 20 * self.linear(x) - 300
        return z.exp().sum(-1).log() if self.in_steps else z.logsumexp(-1)


def test_exponentials_that_vanish_leave_the_range_of_float32(tmp_path):
    torch.manual_seed(2)
    reference, candidate = Summed(in_steps=False), Summed(in_steps=True)
    candidate.load_state_dict(reference.state_dict())
    for name, model in (("reference", reference), ("candidate", candidate)):
        with fd.trace(model, tmp_path / name), torch.no_grad():
            model(X[:, :6] / 10)
    cause = fd.diff(tmp_path / "reference", tmp_path / "candidate").first_drift.cause
    assert cause.label == "overflow", cause
    assert "exp (test_named_steps.py:" in cause.sentence


class Picked(nn.Module):
    """A penalty of the rows that are used, or of all."""

    def __init__(self, every):
        super().__init__()
        self.table, self.every = nn.Parameter(torch.randn(12, 6, generator=torch.Generator().manual_seed(4))), every

    def forward(self, x):
        rows = self.table if self.every else self.table[LABELS.unique()]
        rows = F.normalize(rows, dim=-1)
        return ((rows @ rows.t() - torch.eye(len(rows))) ** 2).sum() / len(rows) ** 2 + 0 * x.sum()


def test_a_call_that_is_left_out_may_change_shapes(tmp_path):
    cause = of_training(tmp_path, Picked(every=False), Picked(every=True)).cause
    assert "is left out" in cause.sentence, cause
    assert "test_named_steps.py:" in cause.sentence
