"""The precision ladder, as data: how large the error of one operation is by what it was computed in.

Every number about rounding is defined here once. A limit is what no correct implementation exceeds, a floor what a
clean one shows, and a rung what an operation shows that was computed in a coarser format than it declares. All are
relative L2 errors of one operation on exact inputs, in units of roundoff of the format they speak of. The page on
verdicts shows them as a table, made from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

from ...core.dtypes import UNIT_ROUNDOFF

# One rounding to nearest, of numbers of all sizes: its root mean square. Independent ones add up like a random walk.
STORE = 0.42
OPERANDS = 0.59  # of a product whose two operands were rounded: sqrt(2) roundings
ACCUMULATED = 0.31  # of a sum that is rounded after every addition, times the square root of their number
CHUNK = 16  # terms that matrix units add up before they round

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

# What clean implementations show, by kind of operation: of formats that round their results only, and of longer ones.
SHORT_FLOOR = {
    "linear": 0.62, "norm": 0.43, "attention": 1.15, "activation": 0.43, "add": 0.43, "move": 0.42, "unknown": 0.62,
}  # fmt: skip
LONG_FLOOR = {
    "linear": 1.8, "norm": 0.8, "attention": 3.5, "activation": 0.45, "add": 0.45, "move": 0.42, "unknown": 1.8,
}  # fmt: skip

WITHIN = 0.25  # of a rung's error, an error sits on it
APART = 4  # how many times longer one sum must be than another to tell a growing error from a constant one


def stored(unit: float, roundings: int = 1) -> float:
    """The error of so many independent roundings of a stored result."""
    return STORE * unit * sqrt(roundings)


def is_short(unit: float) -> bool:
    """Whether a format is one of those that accumulate in a longer one."""
    return unit >= UNIT_ROUNDOFF["f16"]


def floor(kind: str, unit: float) -> float:
    """The error that a clean implementation of one operation shows."""
    return (SHORT_FLOOR if is_short(unit) else LONG_FLOOR)[kind] * unit


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


@dataclass(frozen=True, slots=True)
class Rung:
    """What an operation was computed in, and the error that shows it.

    `factor` is in units of roundoff of `dtype`. `per_step` says that every `chunk` terms round the sum once, so that
    the error grows with the square root of its length; `grid` that weights lie on so many levels up to the largest
    of a `group`, or of a whole column. `high` is for an error known only as a range.
    """

    name: str
    dtype: str
    factor: float
    label: str = "dtype-rounding"
    chunk: int = 0
    high: float = 0.0
    levels: int = 0
    group: int = 0

    @property
    def grows(self) -> bool:
        """Whether the error grows with the number of terms of a sum."""
        return self.chunk > 0

    @property
    def unit(self) -> float:
        """The roundoff of the format, or for a grid its error at the usual length."""
        return UNIT_ROUNDOFF[self.dtype] if self.dtype in UNIT_ROUNDOFF else self.error(1024)

    def error(self, length: int) -> float:
        """The relative error of an operation that sums so many terms."""
        if self.levels:
            return _largest(self.group or length) / (self.levels * sqrt(12))
        steps = max(1.0, length / self.chunk) if self.grows else 1.0
        return self.factor * UNIT_ROUNDOFF[self.dtype] * sqrt(steps)

    def holds(self, error: float, length: int) -> bool:
        """Whether an error sits on this rung."""
        expected = self.error(length)
        highest = self.high * UNIT_ROUNDOFF[self.dtype] if self.high else expected
        return (1 - WITHIN) * expected <= error <= (1 + WITHIN) * highest

    def __str__(self) -> str:
        return self.name


RUNGS = (
    Rung("float32 arithmetic", "f32", STORE, high=5.0),
    Rung("TF32 or float16 operands", "f16", OPERANDS),
    Rung("one TF32 or float16 operand", "f16", STORE),
    Rung("bfloat16 operands", "bf16", OPERANDS),
    Rung("one bfloat16 operand", "bf16", STORE),
    Rung("float8 (e4m3) operands", "f8e4m3fn", OPERANDS),
    Rung("one float8 (e4m3) operand", "f8e4m3fn", STORE),
    Rung("int8 weights", "i8", 0.0, "quantisation", levels=127),
    Rung("int4 weights in groups of 32", "i4", 0.0, "quantisation", levels=7, group=32),
    *(
        Rung(f"{word} accumulator{how}", dtype, ACCUMULATED, "accumulator-precision", chunk=chunk)
        for dtype, word in (("f16", "float16"), ("bf16", "bfloat16"))
        for chunk, how in ((1, ""), (CHUNK, f", rounded every {CHUNK} terms"))
    ),
)
# A product of matrices, and an attention made of several, each rounded as its operands are.
ATTENTION_RUNGS = (
    Rung("TF32 or float16 arithmetic", "f16", SHORT_FLOOR["attention"]),
    Rung("bfloat16 arithmetic", "bf16", SHORT_FLOOR["attention"]),
)


def rung(
    error: float | Sequence[float], length: int | Sequence[int], dtype: str, rungs: Sequence[Rung] = RUNGS
) -> Rung | None:
    """The precision coarser than declared whose rung an introduced error sits on, or that of several sites together.

    All sites must sit on it. A sum that was rounded as it grew is claimed only where sums of several lengths show
    that the error grows with their length.
    """
    errors = [error] if isinstance(error, int | float) else list(error)
    lengths = [length] if isinstance(length, int) else list(length)
    declared = UNIT_ROUNDOFF.get(dtype, 0.0)
    if not errors or not all(value > 0 for value in errors) or not declared:
        return None
    sites = list(zip(errors, lengths, strict=True))
    told_apart = max(lengths) >= APART * min(lengths)
    found = [
        one
        for one in rungs
        if one.unit > declared and (told_apart or not one.grows) and all(one.holds(*site) for site in sites)
    ]
    return min(found, key=lambda one: sum(abs(log(e / one.error(n))) for e, n in sites), default=None)


def _largest(count: int) -> float:
    """How many times its root mean square the largest of so many normal numbers is, on average."""
    from statistics import NormalDist

    return NormalDist().inv_cdf((1 + (count - 0.375) / (count + 0.25)) / 2)
