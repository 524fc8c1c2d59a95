"""Layouts whose weights are rounded once more, because they are stored in bfloat16."""

import copy

import pytest
import torch
from torch import nn

import firstdrift as fd


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


def network():
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    with torch.no_grad():
        for block in model:
            block.norm.weight.uniform_(0.3, 3)
            block.norm.bias.normal_()
    return model.bfloat16()


def folded(model, wrong=1.0):
    """Gains and biases of the norms moved into the matrices behind them; the last one may be wrong by a factor."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for block in model:
            weight, factor = block.up.weight.float(), wrong if block is model[-1] else 1.0
            block.up.bias.copy_(block.up.bias.float() + weight @ block.norm.bias.float())
            block.up.weight.copy_(factor * weight * block.norm.weight.float())
            block.norm.weight.fill_(1)
            block.norm.bias.zero_()
    return model


@pytest.mark.parametrize(("wrong", "code"), [(1.0, 0), (1.1, 1)])
def test_folding_in_bfloat16_is_a_layout_and_a_wrong_factor_a_drift(wrong, code):
    x = torch.randn(5, 7, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    result = fd.check(reference=network(), candidate=folded(network(), wrong), inputs=(x,))
    assert result.exit_code == code, result.sentence
    if code == 0:
        assert result.cause.label == "layout-equivalent"
    else:
        assert result.first_drift.name.startswith("1.")
