"""A weight that one side keeps in another shape is the same weight; one with other numbers is not."""

import numpy as np
import pytest
import torch
from torch import nn

import firstdrift as fd


class Patches(nn.Module):
    """What a convolution of patches computes, or a linear layer on patches laid flat in the order of its weight."""

    def __init__(self, is_conv, order=(0, 2, 4, 1, 3, 5)):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Conv2d(3, 12, 4, stride=4) if is_conv else nn.Linear(48, 12)
        self.scale = nn.Parameter(torch.rand(1, 12) if is_conv else torch.zeros(12))
        self.is_conv, self.order = is_conv, order

    def forward(self, x):
        if self.is_conv:
            return self.embed(x).flatten(2).transpose(1, 2) * self.scale
        flat = x.unflatten(3, (-1, 4)).unflatten(2, (-1, 4)).permute(0, 2, 4, 1, 3, 5).permute(self.order_back())
        return self.embed(flat.flatten(3).flatten(1, 2)) * self.scale

    def order_back(self):
        return (0, 1, 2, *self.order)


def sides(order, train):
    reference, candidate = Patches(True), Patches(False, order)
    with torch.no_grad():
        for ours, theirs in zip(reference.parameters(), candidate.parameters(), strict=True):
            theirs.copy_(ours.reshape(theirs.shape))
    options = {} if not train else {
        "train": True, "loss_fn": lambda y, t: (y - t).square().mean(), "target": torch.zeros(2, 4, 12),
        "optimizer": lambda model: torch.optim.AdamW(model.parameters(), 1e-2),
    }  # fmt: skip
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return fd.check(reference=reference, candidate=candidate, inputs=(x,), seed=0, **options)


@pytest.mark.parametrize("train", [False, True])
def test_a_convolution_of_patches_may_be_a_linear_layer(train):
    result = sides((3, 4, 5), train)
    assert result.exit_code == 0, result.sentence
    assert any("reshaped" in note for pair in result.pairs for note in pair.pair.notes)


@pytest.mark.parametrize("order", [(4, 5, 3), (3, 5, 4)])
def test_patches_laid_flat_in_another_order_are_a_drift(order):
    assert sides(order, train=False).exit_code == 1


def test_other_numbers_in_another_shape_are_not_equal(tmp_path):
    for side, weight in (("r", np.arange(24.0).reshape(2, 3, 4)), ("c", np.arange(24.0)[::-1].reshape(2, 12).copy())):
        with fd.Writer(tmp_path / side) as writer:
            writer.put("fc", "weight", weight.astype(np.float32), port="weight")
            writer.put("fc", "fwd", np.ones(3, np.float32))
    assert fd.diff(tmp_path / "r", tmp_path / "c").exit_code == 2
