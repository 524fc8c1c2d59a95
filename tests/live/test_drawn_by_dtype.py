"""Seeded draws that depend on the dtype: where the reference itself draws other numbers in float64, nobody can tell."""

import copy

import torch
from torch import nn

import firstdrift as fd


class Noisy(nn.Module):
    def __init__(self, dtype=None, factor=1.0):
        super().__init__()
        self.inner, self.dtype, self.factor = nn.Linear(8, 8), dtype, factor

    def forward(self, x):
        noise = torch.normal(0.0, 1.0, x.shape, dtype=self.dtype or x.dtype).to(x.dtype)
        return self.inner(x) * self.factor + 50 * noise


def checked(change):
    torch.manual_seed(0)
    model = Noisy()
    other = copy.deepcopy(model)
    change(other)
    return fd.check(reference=model, candidate=other, inputs=(torch.randn(16, 8),), seed=3)


def test_draws_of_another_dtype_leave_it_open():
    result = checked(lambda one: setattr(one, "dtype", torch.float64))
    assert (result.exit_code, result.verdict) == (2, "inconclusive")
    assert "drew other random numbers here" in result.sentence


def test_the_same_draws_are_green_and_hide_nothing():
    assert checked(lambda one: None).exit_code == 0
    assert checked(lambda one: one.inner.weight.data.mul_(1.1)).exit_code == 1
