"""An exception is shown with its proof, in the text as in --json."""

import copy

import pytest

import firstdrift as fd
from firstdrift.report.text import render

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


def test_a_permuted_layout_is_shown_with_what_was_run():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    other, order = copy.deepcopy(model), torch.randperm(32)
    with torch.no_grad():
        other[0].weight.copy_(model[0].weight[order])
        other[0].bias.copy_(model[0].bias[order])
        other[2].weight.copy_(model[2].weight[:, order])
    result = fd.check(reference=model, candidate=other, inputs=(torch.randn(8, 16),))
    assert result.exit_code == 0
    text = " ".join(render(result).split())
    assert "green by an exception that was proven here" in text
    assert "weight 0:weight: gauge;" in text
    assert "ran in float64 on this and 3 random inputs" in text
    assert "was left, on 512 elements" in text
    again = fd.check(reference=model, candidate=model, inputs=(torch.randn(8, 16),))
    assert "green by an exception" not in render(again)
