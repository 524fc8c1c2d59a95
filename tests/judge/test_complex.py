"""Complex tensors keep their imaginary part: a drift in it alone is one, wherever it is."""

import copy
import warnings

import numpy as np
import pytest

import firstdrift as fd

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


@pytest.fixture(autouse=True)
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class Turning(nn.Module):
    """A layer of complex weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8, dtype=torch.complex64))
        self.angle = 0.0

    def forward(self, x):
        y = x @ self.weight.T
        return torch.complex(y.real, y.imag * (1 + self.angle))


def traced(path, model, program):
    torch.manual_seed(1)
    x = torch.randn(16, 8, dtype=torch.complex64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fd.trace(model, path, optimizer=optimizer, program=program):
        (model(x).abs() ** 2).mean().backward()
        optimizer.step()
    return path


@pytest.fixture(params=[False, True], ids=["no program", "program"])
def run(request, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(Turning())
    ours = traced(tmp_path / "ours", copy.deepcopy(model), request.param)

    def against(change):
        other = copy.deepcopy(model)
        change(other)
        return fd.diff(ours, traced(tmp_path / "theirs", other, request.param))

    return against


def test_the_same_is_green(run):
    assert run(lambda model: None).exit_code == 0


def test_a_forward_that_is_off_in_its_imaginary_part(run):
    result = run(lambda model: setattr(model[0], "angle", 1e-3))
    assert result.exit_code
    assert "nan" not in result.sentence


def test_a_weight_that_is(run):
    def change(model):
        model[0].weight.data[2, 3] += 0.5j

    result = run(change)
    assert (result.exit_code, result.first_drift.phase) == (1, "weight")


@pytest.mark.parametrize("phase", ["grad", "weight_after", "fwd", "weight", "input", "optim"])
def test_any_phase_in_a_trace_of_tensors_alone(tmp_path, phase):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((16, 8)) + 1j * rng.standard_normal((16, 8))).astype(np.complex64)
    name = "input" if phase == "input" else "w"
    port = {"optim": "weight.exp_avg", "fwd": "out", "input": "x"}.get(phase, "weight")
    for side, turn in (("a", 0.0), ("b", 1e-2)):
        with fd.Writer(tmp_path / side) as writer:
            if phase == "weight_after":
                writer.put("w", "weight", x)
                writer.put("w", "grad", x)
            value = x * 2 if phase == "weight_after" else x
            writer.put(name, phase, (value.real + 1j * value.imag * (1 + turn)).astype(np.complex64), port=port)
    result = fd.diff(tmp_path / "a", tmp_path / "b")
    assert result.exit_code
    assert fd.diff(tmp_path / "a", tmp_path / "a").exit_code == 0


def test_check_and_power_see_it():
    torch.manual_seed(0)
    model = nn.Sequential(Turning())
    other = copy.deepcopy(model)
    other[0].angle = 1e-4
    x = torch.randn(16, 8, dtype=torch.complex64)
    result = fd.check(reference=model, candidate=other, inputs=(x,))
    assert result.exit_code == 1
    assert fd.check(reference=model, candidate=copy.deepcopy(model), inputs=(x,)).exit_code == 0


def test_power_makes_both_parts_worse(tmp_path):
    torch.manual_seed(0)
    path = traced(tmp_path / "a", nn.Sequential(Turning()), program=True)
    found = {str(one.site.phase): one.everywhere for one in fd.power(path).sites}
    assert 0 < found["fwd"] < 1e-4
