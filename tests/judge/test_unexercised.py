"""Operations that differ and never mattered: green says what it proves, and these are not among it."""

import pytest

import firstdrift as fd

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


class Network(nn.Module):
    """With its activation as a module, and with a function in the place of it."""

    def __init__(self, act=None, function=None, bias=8.0):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(8, 16), act or nn.Identity(), nn.Linear(16, 4)
        self.function = function or (lambda x: x)
        rng = torch.Generator().manual_seed(0)
        for one in self.parameters():
            one.data = 0.1 * torch.randn(one.shape, generator=rng)
        self.first.bias.data += bias

    def forward(self, x):
        return self.last(self.function(self.act(self.first(x))))


class Kept(nn.Module):
    def forward(self, x):
        return x * (x > 0)


X = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
OTHERS = {"none": nn.Identity(), "leaky": nn.LeakyReLU(), "bounded": nn.Hardtanh(0, 100)}


def traced(tmp_path, program=True, **sides):
    for name, model in sides.items():
        with fd.trace(model, tmp_path / name, program=program):
            model(X)
    return fd.diff(tmp_path / "ref", tmp_path / "cand")


def reasons(result):
    return [pair.reason for pair in result.pairs if pair.verdict.value == "inconclusive"]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("program", [True, False])
def test_a_relu_that_never_cut_anything_off_is_not_known_to_be_there(tmp_path, program, other):
    result = traced(tmp_path, program, ref=Network(nn.ReLU()), cand=Network(other))
    assert result.exit_code == 2
    assert "relu" in reasons(result)[0]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_check_says_so_too(other):
    result = fd.check(reference=Network(nn.ReLU()), candidate=Network(other), inputs=(X,))
    assert result.exit_code == 2
    assert "relu" in reasons(result)[0]


def test_a_function_between_modules_is_asked_as_well(tmp_path):
    assert traced(tmp_path, ref=Network(function=torch.relu), cand=Network()).exit_code == 2


@pytest.mark.parametrize("program", [True, False])
def test_another_way_to_write_the_same_is_green(tmp_path, program):
    assert traced(tmp_path, program, ref=Network(nn.ReLU()), cand=Network(Kept())).exit_code == 0


def test_a_relu_that_cut_something_off_is_a_drift(tmp_path):
    sides = {"ref": Network(nn.ReLU(), bias=0.0), "cand": Network(nn.Identity(), bias=0.0)}
    assert traced(tmp_path, **sides).exit_code == 1


def test_dropout_in_evaluation_and_other_views_are_no_other_operation(tmp_path):
    sides = {"ref": Network(nn.Dropout(0.1)).eval(), "cand": Network(function=lambda x: x.reshape(-1, 16)).eval()}
    assert traced(tmp_path, **sides).exit_code == 0


def test_another_slope_that_no_negative_number_showed_is_left_open(tmp_path):
    def leaky(slope):
        return lambda x: nn.functional.leaky_relu(x, slope)

    sides = {name: Network(function=leaky(slope)) for name, slope in (("ref", 0.01), ("cand", 0.2))}
    assert traced(tmp_path, **sides).exit_code == 2


class Unpacked(nn.Module):
    """Two numbers of four bits in a byte; `shifts` are as operators or as functions."""

    def __init__(self, as_operators):
        super().__init__()
        self.register_buffer("packed", torch.arange(32, dtype=torch.uint8).reshape(4, 8))
        self.as_operators = as_operators

    def forward(self, x):
        low = self.packed & 15 if self.as_operators else torch.bitwise_and(self.packed, 15)
        high = self.packed >> 4 if self.as_operators else torch.bitwise_right_shift(self.packed, 4)
        return x @ torch.cat([low, high]).float()


def test_operators_of_python_are_operations_as_well():
    result = fd.check(reference=Unpacked(True), candidate=Unpacked(False), inputs=(torch.randn(3, 8),))
    assert result.exit_code == 0, result.sentence
