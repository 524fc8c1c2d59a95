"""Numbers moved at random: native where that was compiled, else by numpy; the same bits.

What is drawn for a number depends on a key and on the number's place alone, so that no generator has a state.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from .pieces import Array, compiled

native = compiled("noise")

_BLOCK = 1 << 15  # numbers at a time, so that what is made on the way stays in the caches
_GOLDEN = 0x9E3779B97F4A7C15
_ALL = 2**64 - 1
_EVEN_BYTES, _ONES = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0001000100010001)
_EXPONENT = np.uint64(0x7FF0000000000000)
_DEVIATION = sqrt(8 * 65535 / 12)  # of the sum of eight bytes


class Format(NamedTuple):
    """Which numbers a float format has: float64's digits that it lacks, its smallest normal number, one and a half
    times what float64 adds to a number to round it to whole subnormal steps, and its largest number."""

    digits: int
    normal: float
    step: float
    largest: float


_finfo: Callable[[Any], Any] = ml_dtypes.finfo
_NONE = Format(0, 0.0, 0.0, 0.0)


def format_of(dtype: Any) -> Format:
    """The numbers of a dtype shorter than float64."""
    found = _finfo(dtype)
    normal, digits = float(found.smallest_normal), int(found.nmant)
    return Format((1 << 52 - digits) - 1, normal, 1.5 * 2.0 ** (52 - digits) * normal, float(found.max))


def key_of(*numbers: int) -> int:
    """One key of several whole numbers."""
    key = 0
    for number in numbers:
        key = _mixed((key + number + _GOLDEN) & _ALL)
    return key


def moved(values: Array, key: int, unit: float, width: float, least: float = 0.0, held: Format | None = None) -> Array:
    """Every float64 of a contiguous array, moved by `width` times its size times a uniform draw from -1/2 to 1/2.

    Its size is `unit` of the power of two at or below its magnitude, as the steps of a format are, and `least` where
    that is less. Zeros, what is not finite and what the format `held` has stay; so does what would not be finite any
    more.
    """
    out = _like(values)
    if native is not None:
        native.moved(out, values, key, unit, width, least, *(held or _NONE))
        return out
    flat, into = values.reshape(-1), out.reshape(-1)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            part = flat[start : start + _BLOCK]
            size = (part.view(np.uint64) & _EXPONENT).view(np.float64) * unit
            size = np.where((size < least) & (part != 0), least, size)
            drawn = (_bits(key, start, part.size) >> np.uint64(32)).astype(np.uint32).view(np.int32) * 2.0**-32
            other = part + drawn * width * size
            stays = (size == 0) | ~np.isfinite(other)
            if held is not None:
                stays |= _holds(held, part)
            into[start : start + _BLOCK] = np.where(stays, part, other)
    return out


def scattered(values: Array, deviations: Array, key: int) -> Array:
    """Every float64 of a contiguous array, moved by its deviation times a draw that is nearly normal: a sum of eight
    bytes. What is not finite stays; so does what would not be any more."""
    out = _like(values)
    if _like(deviations).shape != values.shape:
        raise ValueError(f"deviations of shape {deviations.shape} for numbers of shape {values.shape}")
    if native is not None:
        native.scattered(out, values, deviations, key)
        return out
    flat, sizes, into = values.reshape(-1), deviations.reshape(-1), out.reshape(-1)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            part = flat[start : start + _BLOCK]
            bits = _bits(key, start, part.size)
            sums = ((bits & _EVEN_BYTES) + (bits >> np.uint64(8) & _EVEN_BYTES)) * _ONES >> np.uint64(48)
            drawn = (sums.astype(np.int64) - 1020) * (1 / _DEVIATION)
            other = part + drawn * sizes[start : start + _BLOCK]
            into[start : start + _BLOCK] = np.where(np.isfinite(other), other, part)
    return out


def _like(values: Array) -> Array:
    if not values.flags.c_contiguous or values.dtype != np.float64:
        raise ValueError("the array is not a contiguous one of float64")
    return np.empty_like(values)


def _bits(key: int, start: int, count: int) -> Array:
    """The random bits of places from a start on: SplitMix64."""
    bits: Array = np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key)
    return np.asarray(_mixed(bits))


def _mixed(bits: Any) -> Any:
    """SplitMix64's last step, of an array that wraps around or of a number that is cut."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ bits >> shift) * factor & _ALL
    return bits ^ bits >> 31


def _holds(held: Format, values: Array) -> Array:
    """Which numbers a format has: with no digit too many, and below its normal numbers a whole number of steps."""
    size = np.abs(values)
    is_whole = (size >= held.normal) | ((values + held.step) - held.step == values)
    found: Array = ((values.view(np.uint64) & np.uint64(held.digits)) == 0) & (size <= held.largest) & is_whole
    return found
