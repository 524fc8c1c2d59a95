"""Random numbers in the place of those on record: what two functions do on them, they do."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.arrays import wide
from ...core.traces import Array

TRIALS = 3  # random inputs that a proof takes
FEW_VALUES = 4  # different numbers of a tensor that is a mask, and is left as it is
SAME = 1e-13  # relative: two runs of one formula in float64 are no further apart
_LOOKED_AT = 4096  # numbers, to tell a mask


def random_like(array: Array, rng: np.random.Generator, size: float = 1.0) -> Array:
    """Numbers `size` times as large as those of an array, of all signs. Whole numbers change places; truth values, and
    what is not finite, stay as they are."""
    if array.dtype.kind in "iu":
        shuffled: Array = rng.permutation(array.reshape(-1)).reshape(array.shape)
        return shuffled
    if array.dtype.kind == "b" or not array.size:
        return array
    numbers = wide(array)
    if numbers.dtype.kind != "f" or not np.isfinite(numbers).all():
        return array
    usual = float(np.sqrt(np.mean(numbers**2))) or 1.0
    drawn: Array = size * usual * rng.standard_normal(array.shape)
    return drawn


def is_mask(array: Array) -> bool:
    """Whether a tensor has a few different numbers only."""
    return len(np.unique(wide(array).reshape(-1)[:_LOOKED_AT])) <= FEW_VALUES


def are_apart(reference: Any, candidate: Any) -> bool:
    """Whether two results in float64 are of other formulas."""
    if reference.shape != candidate.shape:
        return True
    if reference.dtype.kind not in "fc":
        return not np.array_equal(reference, candidate)
    both = np.isfinite(reference) & np.isfinite(candidate)
    if not np.array_equal(np.isfinite(reference), np.isfinite(candidate)):
        return True
    largest = float(np.abs(reference[both]).max(initial=0.0))
    return bool(np.abs(reference[both] - candidate[both]).max(initial=0.0) > SAME * largest)
