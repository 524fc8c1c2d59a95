"""A cause may leave what draws of the operation leave, however much more that is than operations of its kind do."""

import math

import torch
from torch import nn

import firstdrift as fd

WIDTH = 32


class Times(nn.Module):
    """Sines and cosines of large times; `flipped` the other way round, and from a table of powers."""

    def __init__(self, flipped):
        super().__init__()
        self.out, self.is_flipped = nn.Linear(WIDTH, WIDTH), flipped

    def forward(self, times):
        half = torch.arange(WIDTH // 2)
        if self.is_flipped:
            angles = torch.outer(times.float(), 10_000.0 ** (-half / (WIDTH // 2)))
            return self.out(torch.cat([angles.cos(), angles.sin()], -1))
        angles = times[:, None].float() * torch.exp(-math.log(10_000) * half / (WIDTH // 2))[None]
        return self.out(torch.cat([angles.sin(), angles.cos()], -1))


def test_halves_of_large_angles_are_named_as_those_of_small_ones(tmp_path):
    """At time 500 float32 leaves 1e-5 of a sine, a hundred times its roundoff."""
    for name, flipped in (("a", False), ("b", True)):
        torch.manual_seed(0)
        model = Times(flipped)
        with fd.trace(model, tmp_path / name), torch.no_grad():
            model(torch.tensor([3, 77, 500]))
    first = fd.diff(tmp_path / "a", tmp_path / "b").first_drift
    assert (first.name, first.port) == ("out", "in.0")
    assert first.cause.label in ("swapped-halves", "concat-order"), first.cause.sentence
