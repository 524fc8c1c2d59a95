"""What was computed, or kept for a moment, in a shorter format than declared: by its numbers' grid, or by its error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import UNIT_ROUNDOFF
from ...core.traces import Array
from .ladder import SHORT_LIMIT

SAMPLE = 1 << 20
ON_GRID = 0.999  # of the candidate's numbers, at least
OFF_GRID = 0.5  # of the reference's, at most: integers and the like lie on every grid
STRUCTURED = 0.75  # of an error's energy in one offset or factor a slice: rounded weights alone reach 0.5
EVERYWHERE = 3.0  # how many times smaller than the whole tensor's the error of half of its slices may be
ENOUGH = 8  # elements of a slice, to tell an offset or a factor of it from chance

# How many of the last bits a number leaves zero that went through a shorter format, coarsest first.
ZERO_BITS = {"float32": {"bf16": 16, "f16": 13}, "float64": {"bf16": 45, "f16": 42, "f32": 29}}
NAMES = {"bf16": "bfloat16", "f16": "float16 or TF32", "f32": "float32"}

Floats = NDArray[np.float64]


def coarser_grid(reference: Array, candidate: Array, error: float) -> str | None:
    """The shorter format that explains an error: the candidate lies on its grid, the reference does not."""
    if reference.dtype != candidate.dtype:
        return None
    for dtype, zeros in ZERO_BITS.get(candidate.dtype.name, {}).items():
        explains = error <= SHORT_LIMIT * UNIT_ROUNDOFF[dtype]
        if explains and _on_grid(candidate, zeros) >= ON_GRID and _on_grid(reference, zeros) <= OFF_GRID:
            return dtype
    return None


def looks_like_rounding(of_reference: Array, candidate: Array) -> bool:
    """Whether an error has the shape that rounding gives it: in every slice, and no offset or factor of slices.

    A missing bias, a scale or one wrong head may be as large as a rung, but has a shape of its own.
    """
    reference, difference = _leading(of_reference, candidate)
    energy, size = float(np.sum(difference**2)), float(np.sum(reference**2))
    if not (np.isfinite(energy) and np.isfinite(size)) or energy == 0 or size == 0:
        return False
    tested = 0
    for axis, length in enumerate(reference.shape):
        d, r = (np.moveaxis(a, axis, 0).reshape(length, -1) for a in (difference, reference))
        if d.shape[1] < ENOUGH:
            continue
        tested += 1
        own, norms = np.sum(d**2, 1), np.sum(r**2, 1)
        offsets = np.sum(np.mean(d, 1) ** 2) * d.shape[1]
        factors = np.sum(np.sum(d * r, 1) ** 2 / np.where(norms > 0, norms, 1.0))
        share = np.median(own[norms > 0] / norms[norms > 0])
        if max(offsets, factors) > STRUCTURED * energy or share * EVERYWHERE**2 < energy / size:
            return False
    return tested > 0


def _leading(reference: Array, candidate: Array) -> tuple[Floats, Floats]:
    """The reference and the difference, of whole leading slices where the tensor is large."""
    rows = max(1, SAMPLE // max(1, reference.size // max(1, len(reference)))) if reference.ndim else 1
    a, b = (np.atleast_1d(array)[:rows].astype(np.float64) for array in (reference, candidate))
    with np.errstate(invalid="ignore"):
        return a, b - a


def _on_grid(array: Array, zeros: int) -> float:
    """The share of numbers other than zero whose last bits are zero."""
    bits = np.ascontiguousarray(array.reshape(-1)[:SAMPLE]).view(f"u{array.itemsize}").astype(np.uint64)
    bits = bits[bits != 0]
    return float(np.mean((bits & np.uint64((1 << zeros) - 1)) == 0)) if bits.size else 0.0
