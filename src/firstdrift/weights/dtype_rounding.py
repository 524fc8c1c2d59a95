"""Numbers in another dtype: exact where it can hold them, else rounded once, to nearest even, and counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.arrays import as_float32
from ..core.dtypes import ML_NAMES, dtype_name, numpy_dtype
from ..errors import FormatError
from .checkpoint import Array

FLOATS = ("f64", "f32", "f16", "bf16", *(name for name in ML_NAMES if name != "bf16"))
EXACT = {(source, target) for target in ("f64", "f32") for source in FLOATS if source not in ("f64", target)}
CHUNK = 1 << 20  # elements compared at a time


@dataclass(frozen=True)
class Rounding:
    """What became of one tensor's values: how many are no longer the same, and by how much at most."""

    changed: int = 0
    largest: float = 0.0

    def __add__(self, other: Rounding) -> Rounding:
        return Rounding(self.changed + other.changed, max(self.largest, other.largest))


def as_dtype(array: Array, dtype: str, place: str) -> tuple[Array, Rounding]:
    """The array in another dtype; a value that the dtype has no room for is refused, never made infinite."""
    source = dtype_name(array.dtype)
    if source == dtype:
        return array, Rounding()
    result = np.empty(array.shape, numpy_dtype(dtype))
    flat, out = array.reshape(-1), result.reshape(-1)
    total = Rounding()
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        out[start : start + CHUNK] = rounded = _converted(part, dtype)
        if (source, dtype) not in EXACT:
            total += difference(part, rounded, dtype, place)
    return result, total


def _converted(array: Array, dtype: str) -> Array:
    target = numpy_dtype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        if array.dtype == np.float64 and dtype in ML_NAMES:
            array = _to_odd(array)  # these are reached through float32, and two roundings are not one
        return as_float32(array) if dtype == "f32" else array.astype(target)


def _to_odd(array: Array) -> Array:
    """float64 as float32, inexact results made odd: rounding those once more gives what one rounding would."""
    near = array.astype(np.float32)
    bits = near.view(np.uint32).copy()
    exact = near.astype(np.float64) == array
    toward_zero = np.abs(near.astype(np.float64)) > np.abs(array)
    bits[~exact & toward_zero & np.isfinite(array)] -= 1
    bits[~exact & np.isfinite(array)] |= 1
    return bits.view(np.float32)


def difference(before: Array, after: Array, dtype: str, place: str) -> Rounding:
    """What was lost between two arrays, compared where both are exact; what became infinite or NaN is refused."""
    if before.dtype.kind in "iub" or after.dtype.kind in "iub":
        changed = before != after
        if not changed.any():
            return Rounding()
        raise FormatError(f"{place}: {int(changed.sum())} of its values do not fit {dtype}; keep its dtype")
    common = np.complex128 if before.dtype.kind == "c" else np.float64 if before.dtype == np.float64 else np.float32
    with np.errstate(invalid="ignore"):  # of signalling NaN
        wide, back = before.astype(common), after.astype(common)
    lost = (np.isfinite(wide) != np.isfinite(back)) | (np.isinf(wide) & np.isnan(back))
    if lost.any():
        value = wide[lost][0]
        raise FormatError(
            f"{place}: {int(lost.sum())} of its values, such as {value:g}, are beyond {dtype}; choose bf16 or f32"
        )
    changed = (wide != back) & np.isfinite(wide)
    if not changed.any():
        return Rounding()
    return Rounding(int(changed.sum()), float(np.abs(wide[changed] - back[changed]).max()))
