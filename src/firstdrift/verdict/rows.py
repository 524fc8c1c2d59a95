"""Two tensors as rows of numbers, and whether what was measured of their rows varies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..traces import Array
from .parts import LARGEST

FEWEST = 4  # rows, and numbers in each
VARIED = 0.01  # by which the factors of rows differ at least, relative to their mean

Floats = NDArray[np.float64]


def matrices(both: tuple[Array, Array]) -> tuple[Floats, Floats] | None:
    """Two tensors as rows along their last axis; None where there are too few, or some are not finite, or zero."""
    ours, theirs = both
    if ours.shape != theirs.shape or ours.ndim < 2 or ours.shape[-1] < FEWEST or ours.size > LARGEST:
        return None
    if ours.dtype.kind not in "fV" or theirs.dtype.kind not in "fV":
        return None
    x, z = (np.asarray(array, np.float64).reshape(-1, ours.shape[-1]) for array in both)
    if len(x) < FEWEST or not np.isfinite(x).all() or not np.isfinite(z).all() or not x.any(axis=1).all():
        return None
    return x, z


def varies(factors: Floats) -> bool:
    """Whether rows have factors of their own."""
    return float(np.std(factors)) > VARIED * abs(float(np.mean(factors)))
