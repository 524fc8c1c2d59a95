"""What a closed gate hides is no other way to compute the same, whatever its modules are called."""

import pytest

import firstdrift as fd

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

WRONG = {
    "a factor": lambda x: 1.5 * torch.tanh(x),
    "a term": lambda x: torch.tanh(x) + 0.3 * torch.sin(9 * x),
    "nothing": lambda x: x * 0,
}
OURS = ("first", "up", "act", "gate", "down", "last")
THEIRS = ("e0", "w1", "s2", "w3", "w4", "head")


class Act(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Gated(nn.Module):
    """A branch behind a gate that no usual input opens."""

    def __init__(self, function=torch.tanh, names=OURS):
        super().__init__()
        made = nn.Linear(8, 16), nn.Linear(16, 16), Act(function), nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        for name, module in zip(names, made, strict=True):
            self.add_module(name, module)
        self.names, rng = names, torch.Generator().manual_seed(0)
        for one in self.parameters():
            one.data = 0.3 * torch.randn(one.shape, generator=rng)

    def forward(self, x):
        first, up, act, gate, down, last = (getattr(self, name) for name in self.names)
        h = first(x)
        return last(h + down(h) + torch.relu(gate(x) - 50) * act(up(h)))


X = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))


def diffed(tmp_path, candidate, program):
    for name, model in (("ref", Gated()), ("cand", candidate)):
        with fd.trace(model, tmp_path / name, program=program), torch.no_grad():
            model(X)
    return fd.diff(tmp_path / "ref", tmp_path / "cand", explain=False)


@pytest.mark.parametrize("function", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("program", [True, False])
def test_a_wrong_operation_behind_a_closed_gate_is_a_drift(tmp_path, program, function):
    result = diffed(tmp_path, Gated(function), program)
    assert (result.exit_code, result.first_drift.name) == (1, "act")


@pytest.mark.parametrize("function", WRONG.values(), ids=WRONG)
def test_check_finds_it_too(function):
    result = fd.check(reference=Gated(), candidate=Gated(function), inputs=(X,), explain=False)
    assert (result.exit_code, result.first_drift.name) == (1, "act")


@pytest.mark.parametrize("function", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("program", [True, False])
def test_other_names_do_not_make_it_a_step_of_something_else(tmp_path, program, function):
    assert diffed(tmp_path, Gated(function, THEIRS), program).exit_code
    assert fd.check(reference=Gated(), candidate=Gated(function, THEIRS), inputs=(X,), explain=False).exit_code


@pytest.mark.parametrize("program", [True, False])
def test_other_names_alone_are_green(tmp_path, program):
    assert diffed(tmp_path, Gated(names=THEIRS), program).exit_code == 0
