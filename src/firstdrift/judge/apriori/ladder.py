"""The precision ladder, as data: how large the error of one operation is by what it was computed in.

A limit is what no correct implementation exceeds. All are relative L2 errors of one operation on exact inputs, in
units of roundoff of the format they speak of.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from ...core.dtypes import UNIT_ROUNDOFF

# Error of one operation beyond which no legal order of summation reaches. Short formats accumulate in a longer one,
# so that only the rounding of the stored result counts; serial float32 sums grow with the square root of their length.
SHORT_LIMIT = 3.0
LONG_LIMIT = 25.0
DOUBLE_LIMIT = 1000.0
SERIAL_SUM = 4.0
LIKELY = 2.0  # roundings that two correct results of a few operations differ by, in any row or column
SQUARES = 16  # terms of a norm count as one: none is negative, and the root halves the error of their sum
LIKELY_SUM = 1.5  # and those of sums, times the root of half their terms and one
LONG_REDUCTION = 8192  # beyond it, and for attention, the limit doubles
LONGEST_SUM = 1 << 16  # no serial sum is believed to be longer: TF32 must not pass for float32
SMALL_TENSOR = ((10, 4.0), (1000, 2.0))  # with so few elements, errors scatter by this factor

# What a clean operation of a kind that nobody knows shows: in formats that round results only, and in longer ones.
SHORT_FLOOR, LONG_FLOOR = 0.62, 1.8


def is_short(unit: float) -> bool:
    """Whether a format is one of those that accumulate in a longer one."""
    return unit >= UNIT_ROUNDOFF["f16"]


def floor(unit: float) -> float:
    """The error that a clean implementation of one operation shows."""
    return (SHORT_FLOOR if is_short(unit) else LONG_FLOOR) * unit


def local_limit(unit: float, length: int, kind: str, count: int) -> float:
    """The largest error that one operation can add by itself: `length` terms a sum, `count` elements."""
    if unit <= 0:
        return 0.0
    if is_short(unit):
        limit = SHORT_LIMIT
    else:
        least = LONG_LIMIT if unit > UNIT_ROUNDOFF["f64"] else DOUBLE_LIMIT
        limit = max(least, SERIAL_SUM * sqrt(min(length, LONGEST_SUM)))
    if kind == "attention" or length > LONG_REDUCTION:
        limit *= 2
    return limit * unit * small(count, SMALL_TENSOR)


def likely_limit(unit: float, length: int) -> float:
    """What two correct implementations of a sum of so many terms are hardly further apart than."""
    terms = 1 if is_short(unit) else length
    return unit * max(LIKELY, LIKELY_SUM * sqrt(terms / 2 + 1))


def small(count: int, factors: Sequence[tuple[int, float]], otherwise: float = 1.0) -> float:
    """The factor for tensors of so few elements."""
    return next((factor for few, factor in factors if count <= few), otherwise)
