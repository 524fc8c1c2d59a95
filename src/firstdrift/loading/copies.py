"""A weight that a file has twice although the model has it once: a copy, a rounded copy, or another matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..checkpoints.checkpoint import Array, Entry

# How far a row of a copy may be off, as a share of its length: by 8 bits or more for a number, or by as few as 3 where
# one of both is stored that way. Rows of matrices that have nothing to do with each other are 1.4 apart.
ROUNDED, REQUANTIZED = 0.02, 0.25
CHUNK = 1 << 20  # elements looked at together


@dataclass(frozen=True, slots=True)
class Difference:
    """How two matrices differ: the largest difference, beside the largest value, and the row that is farthest off."""

    largest: float
    beside: float
    row: int
    share: float  # of the row's own length, or of the usual one where that is more
    allowed: float

    @property
    def is_copy(self) -> bool:
        """Whether one is the other but for rounding; a NaN is not."""
        return self.share <= self.allowed

    def __str__(self) -> str:
        return f"they differ by up to {self.largest:.3g}, where the largest value is {self.beside:.3g}"


def difference(one: Array, other: Array, stored: Sequence[Entry]) -> Difference:
    """Compare two arrays of one shape row by row, some rows at a time."""
    mine, its = _rows(one), _rows(other)
    together = max(1, CHUNK // max(1, mine.shape[1]))
    lengths, apart = np.zeros(len(mine)), np.zeros(len(mine))
    largest = beside = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, len(mine), together):
            part = slice(start, start + together)
            left = mine[part].astype(np.float64)
            gap = np.abs(its[part].astype(np.float64) - left)
            lengths[part] = np.sqrt(np.einsum("ij,ij->i", left, left))
            apart[part] = np.sqrt(np.einsum("ij,ij->i", gap, gap))
            largest = max(largest, float(gap.max(initial=0.0)))
            beside = max(beside, float(np.abs(left).max(initial=0.0)))
        usual = float(np.sqrt(np.mean(lengths**2))) if len(mine) else 0.0
        shares = apart / np.maximum(np.maximum(lengths, usual), np.finfo(np.float64).tiny)
    row = int(np.argmax(shares)) if len(shares) else 0  # the first NaN, if there is one
    coarse = any(entry.quantized or entry.dtype.startswith("f8") for entry in stored)
    share = float(shares[row]) if len(shares) else 0.0
    return Difference(largest, beside, row, share, REQUANTIZED if coarse else ROUNDED)


def _rows(array: Array) -> Array:
    return array.reshape(len(array), -1) if array.ndim >= 2 and array.size else array.reshape(1, -1)
