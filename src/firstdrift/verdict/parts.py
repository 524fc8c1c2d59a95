"""The worst part of a tensor: how concentrated an error is, by itself and for the size of what it sits on."""

from __future__ import annotations

import math

import numpy as np

from .._kernels import Measurement
from ..traces import Array
from .noise import WORST_OF_MANY

LARGEST = 1 << 26  # elements that are looked at once more


def worst_part(measurement: Measurement) -> float:
    """The error of the worst row, column or block, on the scale of the whole tensor."""
    detail = measurement.detail
    if detail is None:
        return 0.0
    regions = (detail.worst_row, detail.worst_column, detail.worst_block)
    return max((region.error for region in regions if region is not None), default=0.0)


def worst_for_its_size(ours: Array, theirs: Array, measurement: Measurement) -> float:
    """The error of the worst row, column or block, on the scale of the whole tensor, or less where the part is much
    larger than the whole: rounding errors are where the numbers are large, and a tensor may be little more than a few
    of those."""
    detail, size = measurement.detail, measurement.norm_reference
    if detail is None or ours.size != math.prod(detail.matrix) or not (size and measurement.compared):
        return worst_part(measurement)
    if ours.size > LARGEST or ours.dtype.kind not in "fV":
        return worst_part(measurement)
    x, z = (np.asarray(array, np.float64).reshape(detail.matrix) for array in (ours, theirs))
    finite = np.isfinite(x) & np.isfinite(z)
    squares, errors = (np.where(finite, a**2, 0.0) for a in (np.where(finite, x, 0.0), np.where(finite, z - x, 0.0)))
    least = size**2 / measurement.compared
    squares = squares / WORST_OF_MANY**2  # a part may be so much larger than the whole that nobody need ask
    worst = max(float(np.max(errors.mean(axis) / np.maximum(squares.mean(axis), least))) for axis in (0, 1))
    if (block := detail.worst_block) is not None:
        row, column = divmod(block.start, detail.matrix[1])
        mean = float(squares[row : row + block.shape[0], column : column + block.shape[1]].mean())
        worst = max(worst, block.error**2 * least / max(mean, least))
    return math.sqrt(worst)
