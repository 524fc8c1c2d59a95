"""Filters do not move the blame to what is left."""

import copy

import pytest

import firstdrift as fd

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


@pytest.fixture(params=[False, True], ids=["by the library", "by the program"])
def traces(request, tmp_path):
    """A network whose first layer is wrong."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    other = copy.deepcopy(model)
    other[0].forward = lambda x: nn.functional.linear(x, other[0].weight, other[0].bias) * 1.2
    x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
    for name, one in (("a", model), ("b", other)):
        with fd.trace(one, tmp_path / name, program=request.param):
            nn.functional.cross_entropy(one(x), y).backward()
    return tmp_path / "a", tmp_path / "b"


def test_without_a_filter_the_first_layer_is_blamed(traces):
    first = fd.diff(*traces).first_drift
    assert (first.name, first.introduced_by) == ("0", "0")


@pytest.mark.parametrize(
    "chosen", [{"only": "4"}, {"phases": "grad"}, {"phases": ["loss", "lossgrad"]}, {"only": "[34]"}]
)
def test_what_was_left_out_may_be_to_blame(traces, chosen):
    result = fd.diff(*traces, **chosen)
    assert result.exit_code
    by = "not looked at" if result.first_drift is None else result.first_drift.introduced_by
    assert "not looked at" in by or by.startswith("something between")


def test_what_is_left_is_blamed_where_its_own_inputs_were_looked_at(traces):
    result = fd.diff(*traces, only=["0", "input"])
    assert result.first_drift.introduced_by == "0"
