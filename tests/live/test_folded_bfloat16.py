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


class Convolutions(nn.Module):
    """Convolutions and their norms side by side, as many channels as columns; one channel may be dead."""

    def __init__(self, dead):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)
        with torch.no_grad():
            for norm in (self.norm1, self.norm2):
                norm.weight.uniform_(0.3, 3)
                norm.bias.normal_()
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.3, 3)
            if dead:
                self.norm1.weight[2], self.norm1.bias[2] = 0.01, -5.0

    def forward(self, x):
        h = self.norm1(self.first(x)).relu()
        return self.head(self.norm2(self.second(h)).relu().mean((2, 3)))


def batch_norms_folded(model, wrong):
    model = copy.deepcopy(model)
    with torch.no_grad():
        for conv, name in ((model.first, "norm1"), (model.second, "norm2")):
            norm = getattr(model, name)
            gain = norm.weight * (norm.running_var + norm.eps).rsqrt()
            conv.weight.mul_(gain[:, None, None, None])
            conv.bias.copy_((conv.bias - norm.running_mean) * gain + norm.bias)
            setattr(model, name, nn.Identity())
        model.second.weight[3] *= wrong
    return model


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("wrong", "code"), [(1.0, 0), (3.0, 1)])
def test_batch_norms_beside_their_convolutions_are_folded_in_any_format(dtype, wrong, code, dead):
    reference = Convolutions(dead).eval()
    candidate = batch_norms_folded(reference, wrong)
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    result = fd.check(reference=reference.to(dtype), candidate=candidate.to(dtype), inputs=(x,))
    assert result.exit_code == code, result.sentence
    if code:
        assert result.first_drift is not None
        assert result.first_drift.name in ("second", "norm2")


class Turned(nn.Module):
    """Attention that turns queries and keys, by whatever angle with the same weights; a skip connection dilutes it."""

    def __init__(self, share=0.05):
        super().__init__()
        self.turn, self.q, self.k, self.out = Turn(1.0), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.share = share

    def forward(self, x):
        scores = self.turn(self.q(x)) @ self.turn(self.k(x)).mT
        return x + self.share * self.out(scores.softmax(-1) @ x)


class Turn(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.share = share

    def forward(self, x):
        a, b = x.chunk(2, -1)
        angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * self.share
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def test_what_a_skip_connection_dilutes_below_bfloat16_is_no_layout_where_weights_are_the_same():
    torch.manual_seed(0)
    reference = nn.Sequential(Turned(), nn.Linear(32, 8))
    candidate = copy.deepcopy(reference)
    candidate[0].turn.share = 0.8
    x = torch.randn(5, 7, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    result = fd.check(reference=reference.bfloat16(), candidate=candidate.bfloat16(), inputs=(x,))
    assert result.exit_code == 1, result.sentence
    assert result.first_drift.name == "0.turn"


class Sharp(nn.Module):
    """A block whose rounding decides much: what it makes is steep."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down((40 * self.up(self.norm(x))).softmax(-1))


def test_however_much_rounding_weights_does_a_layout_does_not_excuse_a_factor():
    """An ill-conditioned model would excuse anything otherwise."""
    torch.manual_seed(0)
    reference = nn.Sequential(Sharp(), Sharp())
    with torch.no_grad():
        for block in reference:
            block.norm.weight.uniform_(0.3, 3)
            block.norm.bias.normal_()
    reference = reference.bfloat16()
    x = torch.randn(5, 7, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    result = fd.check(reference=reference, candidate=folded(reference, 1.5), inputs=(x,))
    assert result.exit_code != 0, result.sentence
