"""What the kernels must know about number formats: which are supported, the coarser of two, ULP distances."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from .pieces import Array

DType = np.dtype[Any]
_finfo: Callable[[DType], Any] = ml_dtypes.finfo

FLOATS: tuple[DType, ...] = tuple(
    np.dtype(t)
    for t in (
        np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz,
    )
)  # fmt: skip
_DIGITS = {dtype: _finfo(dtype).nmant for dtype in FLOATS}


def _bits(number: Any) -> int:
    return int.from_bytes(number.tobytes(), sys.byteorder)


# Bits of finite numbers with opposite signs are at least this far apart, whichever way around.
_ACROSS = {dtype: (1 << (8 * dtype.itemsize - 1)) - _bits(_finfo(dtype).max) for dtype in FLOATS}

BUCKETS = 496  # of the ULP histogram: distances below 16 exactly, then eight buckets an octave up to 2**64


def is_float(dtype: DType) -> bool:
    """Whether the dtype is one of the real floating-point formats."""
    return dtype in _DIGITS or dtype.newbyteorder("=") in _DIGITS


def check_dtype(dtype: DType) -> None:
    """Raise TypeError for what has no numbers in it, or numbers of a format not supported."""
    if not (is_float(dtype) or dtype.kind in "iub"):
        raise TypeError(f"cannot measure tensors of dtype {dtype}")


def coarser(reference: DType, candidate: DType) -> DType | None:
    """The float dtype with fewer digits; of two with as many digits the candidate's; none if either is no float."""
    if not (is_float(reference) and is_float(candidate)):
        return None
    a, b = reference.newbyteorder("="), candidate.newbyteorder("=")
    return a if _DIGITS[a] < _DIGITS[b] else b


def narrowed(values: Array, dtype: DType) -> Array:
    """The values rounded to nearest into `dtype`, the finite ones beyond its range to its largest."""
    if values.dtype == dtype:
        return values
    largest = float(_finfo(dtype).max)
    with np.errstate(all="ignore"):
        return np.clip(values.astype(np.float64), -largest, largest).astype(dtype)


def distance(low: Array, high: Array) -> Array:
    """The exact distance between integers of one dtype, unsigned."""
    unsigned = f"u{low.itemsize}"
    gap: Array = high.view(unsigned) - low.view(unsigned)
    return gap


def bit_gaps(a: Array, b: Array, memory: Array) -> Array:
    """The differences of the bits of two arrays of one dtype, read as signed integers that wrap around. They lie in
    `memory`, which has eight bytes an element."""
    signed = f"i{a.itemsize}"
    out = memory.view(signed)[: a.size].reshape(a.shape)
    gaps: Array = np.subtract(a.view(signed), b.view(signed), out=out)
    return gaps


def ulp_distances(a: Array, b: Array, gaps: Array) -> tuple[Array, int, int]:
    """How many representable numbers lie between finite values, the most of them, and how many pairs have
    opposite signs. `gaps` are those of the bits; distances take their place.

    Of one sign the bits count the numbers from zero; pairs that lie across zero are few and counted apart.
    Both zeros are the same number.
    """
    unsigned = f"u{a.itemsize}"
    distances: Array = np.abs(gaps, out=gaps).view(unsigned)
    largest = int(distances.max())
    if largest < _ACROSS[a.dtype]:
        return distances, largest, 0
    x, y = a.view(unsigned), b.view(unsigned)
    magnitude = np.array((1 << (8 * a.itemsize - 1)) - 1, unsigned)
    across = np.nonzero((x ^ y) > magnitude)
    u, v = x[across] & magnitude, y[across] & magnitude
    distances[across] = u + v
    return distances, int(distances.max()), int(np.count_nonzero((u != 0) & (v != 0)))


def integer_distance(a: Array, b: Array) -> Array:
    """The exact distance of two integer or bool arrays of any dtypes."""
    if a.dtype.kind == "b":
        a = a.view(np.uint8)
    if b.dtype.kind == "b":
        b = b.view(np.uint8)
    common = np.result_type(a, b)
    if common.kind == "f":  # uint64 against signed: no dtype holds both, Python's integers do
        gap: Array = np.abs(a.astype(object) - b.astype(object))
        return gap
    a, b = a.astype(common, copy=False), b.astype(common, copy=False)
    return distance(np.minimum(a, b), np.maximum(a, b))


def histogram(distances: Array, largest: int) -> Array:
    """Counts per bucket: the value itself below 8, else its octave and three bits after the leading one."""
    if largest < 16:  # the buckets of the first octave beyond 8 hold one value each
        small: Array = np.bincount(distances.reshape(-1).astype(np.int64), minlength=BUCKETS)
        return small
    exact = distances
    if distances.itemsize == 8:  # without the bit four below the leading one no rounding can carry that far
        exact = distances & ~(distances >> np.uint64(4))
    leading = exact.astype(np.float64).view(np.int64) >> 49
    bucket = np.where(distances < 8, distances.astype(np.int64), leading - 8200)
    counts: Array = np.bincount(bucket.reshape(-1), minlength=BUCKETS)
    return counts


def bucket_ceiling(bucket: int) -> int:
    """The largest distance that falls into the bucket."""
    if bucket < 16:
        return bucket
    return (((bucket & 7) + 9) << ((bucket >> 3) - 1)) - 1


def percentile_999(counts: Array, largest: int) -> int:
    """An upper bound, within an eighth, of the distance that 99.9 % of the counted do not exceed."""
    total = int(counts.sum())
    rank = total - total // 1000
    bucket = int(np.searchsorted(np.cumsum(counts), rank)) if total else 0
    return min(bucket_ceiling(bucket), largest)


def octaves(counts: Array) -> tuple[int, ...]:
    """The histogram by powers of two: distance 0, then [1, 2), [2, 4) ... up to the last one counted."""
    edges = [0, 1, 2, 4, *range(8, BUCKETS, 8)]
    by_octave = np.add.reduceat(counts, edges)
    used = np.flatnonzero(by_octave)
    return tuple(by_octave[: used[-1] + 1].tolist()) if used.size else ()
