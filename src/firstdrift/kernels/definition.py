"""The definition of every measured number, in plain numpy and in bounded memory.

Arithmetic is in float64. `passes` takes the raw sums of a pair; `results` says what follows from them. Numbers
are over the positions that are finite on both sides.

Counts, the largest difference and where it is, the largest relative one, ULP distances, minima and maxima are exact.
Sums are of float64 values in an order that is not defined: two kernels may differ by 1e-12 of the sum of the absolute
terms, and so may what follows from the sums; of regions whose errors are that close either may be the worst. Each
kernel by itself always gives the same bits: they do not depend on threads or on how a tensor lies in memory.
"""

from __future__ import annotations

import math

import numpy as np

from . import floats, pieces
from .pieces import Array
from .results import Measurement, Number, Stats, Sums, detail_of, deviation_of, measurement_of, stats_of

# Sums of float64 squares outside these limits have overflowed, or lost digits to underflow: measured again,
# scaled.
_LARGEST_SUM, _SMALLEST_SUM = 2.0**1000, 2.0**-800


def measure(reference: Array, candidate: Array, *, full: bool = True) -> Measurement:
    """Measure what separates two tensors of equal shape.

    Two float dtypes are compared as float64, which holds both; integers and bools exactly; an integer against
    a float as float64. Complex tensors are measured as the real tensors of their components (shape + (2,)),
    and so are counted and indexed. `full` adds the details of a pair that is not bit-equal.
    """
    from .numpy_pass import sums_of_pair  # here, because the native twin needs all but that

    reference, candidate = checked_pair(reference, candidate)
    sums, scale = sums_of_pair(reference, candidate, full), 1.0
    if 8 in (reference.itemsize, candidate.itemsize) and out_of_range(sums):
        scale = _scale(max(_largest(stats(reference)), _largest(stats(candidate))))
    if scale != 1.0:
        again = sums_of_pair(reference, candidate, full, scale)
        sums = again._replace(max_abs=sums.max_abs, max_abs_index=sums.max_abs_index, max_rel=sums.max_rel)
    return finish(reference, candidate, sums, full, scale)


def checked_pair(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Both tensors as real ones, or the error that says why they cannot be measured."""
    reference, candidate = pieces.components(np.asarray(reference)), pieces.components(np.asarray(candidate))
    floats.check_dtype(reference.dtype)
    floats.check_dtype(candidate.dtype)
    if reference.shape != candidate.shape:
        raise ValueError(f"shapes differ: reference {reference.shape}, candidate {candidate.shape}")
    return reference, candidate


def finish(reference: Array, candidate: Array, sums: Sums, full: bool, scale: float = 1.0) -> Measurement:
    """The measurement of two real tensors whose raw sums are known."""
    at_max = detail = std = None
    if sums.max_abs_index >= 0:
        at_max = (_number(reference, sums.max_abs_index), _number(candidate, sums.max_abs_index))
    if full and sums.differing:
        ulp = floats.is_float(reference.dtype) and floats.is_float(candidate.dtype)
        detail = detail_of(sums, pieces.matrix_shape(reference.shape), ulp=ulp)
        std = deviation_of(sums, scale)
        if std is None and sums.compared:
            std = _deviation(reference, candidate, scale)
    return measurement_of(sums, reference.size, at_max, std, detail, scale)


def stats(array: Array) -> Stats:
    """Statistics of one tensor; the elements are summed as they lie in memory."""
    array = pieces.in_memory_order(pieces.components(np.asarray(array)))
    floats.check_dtype(array.dtype)
    found, square = _stats(array, 1.0)
    scale = _scale(_largest(found)) if array.itemsize == 8 and square_out_of_range(square) else 1.0
    return found if scale == 1.0 else _stats(array, scale)[0]


def square_out_of_range(square: float) -> bool:
    """Whether a sum of float64 squares has overflowed or lost digits; zero counts, harmlessly."""
    return not _SMALLEST_SUM < square < _LARGEST_SUM


def out_of_range(sums: Sums) -> bool:
    """Whether the squares of a pair with 8-byte elements have left the range of float64."""
    return square_out_of_range(sums.square_reference + sums.square_candidate + sums.square_difference)


def _number(array: Array, index: int) -> Number:
    value = array.item(index)  # of a flat index, whatever the strides
    return int(value) if array.dtype.kind in "iub" else float(value)


def _largest(found: Stats) -> Number:
    return max(abs(found.min or 0), abs(found.max or 0))


def _scale(largest: Number) -> float:
    """The power of two that brings the largest magnitude near 1."""
    return 2.0 ** -max(-1000, min(1000, math.frexp(largest)[1])) if largest else 1.0


def _stats(array: Array, scale: float) -> tuple[Stats, float]:
    """Statistics and the (scaled) sum of squares."""
    nan_count = inf_count = 0
    low: list[Number] = []
    high: list[Number] = []
    origin = 0.0
    sums = np.zeros(3)
    with np.errstate(all="ignore"):
        for piece in pieces.flat_pieces(array):
            values = present = piece.astype(np.float64)
            if not math.isfinite(float(values.sum())):
                nan_count += int(np.count_nonzero(np.isnan(values)))
                inf_count += int(np.count_nonzero(np.isinf(values)))
                present = values[np.isfinite(values)]
            if not present.size:
                continue
            exact = piece.view(np.uint8) if piece.dtype.kind == "b" else piece if piece.dtype.kind in "iu" else present
            if not low:
                origin = float(present[0]) * scale
            low = [min([*low, exact.min().item()])]
            high = [max([*high, exact.max().item()])]
            sums += _shifted_sums(present, origin, scale)
    shift, square_shift, square = sums.tolist()
    extremes = (low[0], high[0]) if low else (0, 0)
    moments = (shift, square_shift, square)
    return stats_of(array.size, nan_count, inf_count, extremes, origin, moments, scale), square


def _deviation(reference: Array, candidate: Array, scale: float) -> float | None:
    """The reference's standard deviation where both sides are finite, measured from one of its elements."""
    count, origin, sums = 0, 0.0, np.zeros(3)
    with np.errstate(all="ignore"):
        for a, b in zip(pieces.flat_pieces(reference), pieces.flat_pieces(candidate), strict=True):
            values = a.astype(np.float64)
            present = values[np.isfinite(values) & np.isfinite(b.astype(np.float64))]
            if present.size and not count:
                origin = float(present[0]) * scale
            count += present.size
            sums += _shifted_sums(present, origin, scale)
    shift, square_shift, square = sums.tolist()
    return stats_of(count, 0, 0, (0, 0), origin, (shift, square_shift, square), scale).std


def _shifted_sums(values: Array, origin: float, scale: float) -> tuple[float, float, float]:
    """Sums of x - origin, of its square and of x squared."""
    values = values * scale
    shifted = values - origin
    return float(shifted.sum()), float(np.square(shifted).sum()), float(np.square(values).sum())
