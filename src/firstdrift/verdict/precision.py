"""Numbers on a coarser grid than their dtype's: what was computed, or kept for a moment, in a shorter format."""

from __future__ import annotations

import numpy as np

from ..dtypes import UNIT_ROUNDOFF
from ..traces import Array

SAMPLE = 1 << 20
ON_GRID = 0.999  # of the candidate's numbers, at least
OFF_GRID = 0.5  # of the reference's, at most: integers and the like lie on every grid
ROUNDINGS = 3.0

# How many of the last bits a number leaves zero that went through a shorter format, coarsest first.
ZERO_BITS = {"float32": {"bf16": 16, "f16": 13}, "float64": {"bf16": 45, "f16": 42, "f32": 29}}
NAMES = {"bf16": "bfloat16", "f16": "float16 or TF32", "f32": "float32"}


def coarser_grid(ours: Array, theirs: Array, error: float) -> str | None:
    """The shorter format that explains an error: the candidate lies on its grid, the reference does not."""
    if ours.dtype != theirs.dtype:
        return None
    for dtype, zeros in ZERO_BITS.get(theirs.dtype.name, {}).items():
        explains = error <= ROUNDINGS * UNIT_ROUNDOFF[dtype]
        if explains and _on_grid(theirs, zeros) >= ON_GRID and _on_grid(ours, zeros) <= OFF_GRID:
            return dtype
    return None


def _on_grid(array: Array, zeros: int) -> float:
    """The share of numbers other than zero whose last bits are zero."""
    bits = np.ascontiguousarray(array.reshape(-1)[:SAMPLE]).view(f"u{array.itemsize}").astype(np.uint64)
    bits = bits[bits != 0]
    return float(np.mean((bits & np.uint64((1 << zeros) - 1)) == 0)) if bits.size else 0.0
