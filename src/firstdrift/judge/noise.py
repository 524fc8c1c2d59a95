"""Whether an error is noise: what a tensor differs by, held against what rounding makes of the same calls.

Correct code is drawn at random a few times (program/running/rounding.py), and every statistic of the error is compared
with the same statistic of the draws: of the whole tensor, of a factor on all of it, of each row, column and element. So
no distribution is assumed, and an operation that is ill-conditioned in one row is so in the draws, in that row alone.

Each number is weighed by the noise around it: a factor of its row times a factor of its column, fitted to the draws, or
its own rounding where that is more. A large element, row or channel excuses itself and nothing beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import real_parts
from ..core.traces import Array
from .apriori.ladder import is_short
from .measure.scales import CLEAR, FEWEST, TWO_SIZES, matrix_of

Floats = NDArray[np.float64]
Draw = Callable[[int], Array | None]

FEW_DRAWS, MANY_DRAWS = 3, 12  # before a part is beyond noise, and before it is a drift
SMALL, SMALL_DRAWS = 64, 16  # elements of which a few draws tell too little
BETTER = 0.7  # of the draws' noise: a candidate whose usual row is better than this is judged as if it were not
USUAL = 0.25  # of all rows and columns, so many show the candidate's usual noise, whatever is wrong in others
NOISIER = 4.0  # times the noise that is fitted to it, squared, a row or element shows that is noisier than the rest
OWN = 5.0  # times its own draws', its error may be then
FACTOR = 8.0  # times the draws', a factor on all of a tensor may be off
CONSTANT = 2.0  # roundings that a factor may be off because constants were rounded: a step has several
ROUNDED = 0.42  # of a unit roundoff: one rounding, in the root mean square
ROUNDS = 3  # of fitting factors to rows and columns in turn
TINY = 2.0**-102  # numbers of which float32 has fewer digits, or none
NEXT_TO_NONE = 2.0**-60  # of the largest row: a row that nothing was put into
LEAST = 1e-3  # of the usual noise, below which none is believed to be


@dataclass(frozen=True, slots=True)
class Times:
    """How many times the worst of all draws an error may be: of a whole tensor, which scatters less than its numbers,
    of one that is smaller than a row, of a row or column, and of an element."""

    whole: float
    few: float
    part: float
    number: float


# Twice what correct candidates show of a whole, and a little more of parts: 0 of them may be a drift, and few in doubt.
LONG = Times(whole=1.9, few=3.0, part=3.0, number=3.0)
SHORT = Times(whole=1.6, few=2.6, part=1.7, number=1.7)  # what is added up in a longer format scatters less


@dataclass(frozen=True, slots=True)
class Excess:
    """The statistic of an error that is the furthest beyond the noise of draws: where, how large it is relative to the
    tensor, what noise explains of it, and how many times as much it is. `whole` is what noise explains of all of it,
    and `seen` the factor on all of it, less one, that would be as much as that; 0 where nothing was drawn."""

    where: str
    error: float
    limit: float
    times: float
    draws: int
    whole: float = 0.0
    seen: float = 0.0

    @property
    def beyond(self) -> bool:
        return not self.times <= 1.0


def excess_of(expected: Array, found: Array, unit: float, draw: Draw, before: Array | None = None) -> Excess | None:
    """How far a tensor is beyond noise from what was expected of it; None where no noise can be drawn.

    `unit` is the roundoff of what it is stored in, `draw` gives what correct code would make of the same inputs by a
    seed. `before` are the weights that an update was added to: what counts is then the update, and draws are of what is
    not stored yet.
    """
    exact = real_parts(expected)
    if not _same_where_not_finite(exact, found):
        return Excess("the whole", inf, unit, inf, 0)
    error = _off(found, exact)
    own = np.maximum(matrix(np.abs(_finite(exact))), TINY) * unit
    if not (np.abs(error) > CLEAR * own).any() and before is None:
        return Excess("the whole", _relative(error, own, unit), unit, 0.0, 0)
    update = None if before is None else _Update(expected, found, before)
    draws: list[Floats] = []
    worst: Excess | None = None
    for count in (SMALL_DRAWS,) if error.size < SMALL else (FEW_DRAWS, MANY_DRAWS):
        while len(draws) < count:
            drawn = draw(len(draws) + 1)
            if drawn is None or drawn.shape != expected.shape:
                return None
            noise = _off(drawn, exact)
            if update is not None:
                update.draws.append(_off(_stored(drawn, found), update.exact))
                noise = noise + rounding_of(own, len(draws))
            draws.append(noise)
        found_so, scale = _statistics(error, draws, own, unit), _scales(draws, own)
        if update is None:
            factor = _factor(error, draws, matrix(_finite(exact)), scale, unit)
            seen = min(factor.limit, found_so[0].limit)
        else:
            factor = _factor(update.error, update.draws, update.direction, own**2, unit)
            seen = factor.limit
        whole = 0.0 if scale is None else _invisible(scale, own, unit) * _times(unit).whole
        worst = replace(max((*found_so, factor), key=lambda one: one.times), whole=whole, seen=seen)
        if not worst.beyond:
            break
    return worst


def _invisible(scale: Floats, own: Floats, unit: float) -> float:
    """The noise of the usual row that holds anything, relative to the row."""
    sizes = np.sqrt(np.mean((own / unit) ** 2, axis=1)) if unit else np.ones(len(own))
    holds = sizes > NEXT_TO_NONE * sizes.max(initial=0.0)
    noise: Floats = np.sqrt(np.mean(scale, axis=1))[holds] / sizes[holds]
    return float(np.median(noise)) if len(noise) else 0.0


def draws_of(expected: Array, draw: Draw) -> list[Array] | None:
    """As many draws as decide about a tensor in doubt; None where there is none."""
    found = [draw(seed + 1) for seed in range(SMALL_DRAWS if expected.size < SMALL else MANY_DRAWS)]
    known = [array for array in found if array is not None and array.shape == expected.shape]
    return known if len(known) == len(found) else None


def is_beyond(
    expected: Array, found: Array, unit: float, draws: Sequence[Array], before: Array | None, times: float
) -> bool:  # fmt: skip
    """Whether a tensor is so many times beyond the noise of draws that are known already."""
    excess = excess_of(expected, found, unit, lambda seed: draws[seed - 1], before)
    return excess is not None and not excess.times <= times


class _Update:
    """What a step has added to weights, as they are stored: where it is less than a step of their dtype, rounding is
    all of it, and no two sides round otherwise but next to the middle between two numbers."""

    def __init__(self, expected: Array, found: Array, before: Array) -> None:
        self.exact = _stored(expected, found)
        self.error = _off(found, self.exact)
        self.direction = _off(expected, real_parts(before))
        self.draws: list[Floats] = []  # of the weights after the step, stored


def rounding_of(own: Floats, seed: int) -> Floats:
    """One rounding of every number: up to a unit roundoff of the power of two below it."""
    drawn: Floats = np.random.Generator(np.random.Philox(seed)).random(own.shape) - 0.5
    steps: Floats = np.ldexp(2.0, np.frexp(own)[1] - 1)
    return drawn * steps


def statistics_of(expected: Array, found: Array, unit: float, draws: Sequence[Array]) -> Excess:
    """The statistic of an error that is the furthest beyond that of draws, each as it is: no margin for drawing few."""
    exact = real_parts(expected)
    own = np.maximum(matrix(np.abs(_finite(exact))), TINY) * unit
    found_so = _statistics(_off(found, exact), [_off(draw, exact) for draw in draws], own, unit)
    return max(found_so, key=lambda one: one.times)


def _statistics(error: Floats, draws: Sequence[Floats], own: Floats, unit: float) -> list[Excess]:
    """Every statistic of an error against the same of the draws."""
    scale = _scales(draws, own)
    if scale is None:
        return [_exact(error, own, unit, len(draws))]
    count = len(draws)
    size = float(np.sqrt(np.mean((own / unit) ** 2))) or 1.0 if unit else 1.0
    noise = float(np.sqrt(np.mean(scale))) / size
    weighed, others = error**2 / scale, [draw**2 / scale for draw in draws]
    usual = max(sqrt(float(array.mean())) for array in others)
    whole, times = sqrt(float(weighed.mean())), _times(unit)
    found = [_of("the whole", whole, (times.whole if error.size >= FEWEST else times.few) * usual, noise, count)]
    better = _better(weighed, others)
    if error.shape[1] >= FEWEST and error.shape[0] > 1:
        found.append(_worst("row", weighed.mean(1), [array.mean(1) for array in others], times.part * better, noise))
    if error.shape[0] >= FEWEST and error.shape[1] > 1:
        found.append(_worst("column", weighed.mean(0), [array.mean(0) for array in others], times.part * better, noise))
    if error.size > 1:
        found.append(_worst("element", weighed, others, times.number * better, noise))
    return found


def _times(unit: float) -> Times:
    """Those of the format of a unit roundoff."""
    return SHORT if is_short(unit) else LONG


def _scales(draws: Sequence[Floats], own: Floats) -> Floats | None:
    """The squared noise around every element: of its row and its column; None where draws show none."""
    squares = np.mean([draw**2 for draw in draws], axis=0)
    with np.errstate(divide="ignore"):
        logs = np.log(squares)
    known = np.isfinite(logs)
    if not known.any():
        return None
    fills = known & ~_of_usual_size(logs, known)
    known &= ~fills
    middle = float(logs[known].mean())
    rows, columns = np.zeros(len(logs)), np.zeros(logs.shape[1])
    for _ in range(ROUNDS):
        rows = _means(logs - middle - columns, known)
        columns = _means((logs - middle).T - rows, known.T)
    fitted = np.exp(middle + rows[:, None] + columns)
    fitted *= float(squares[known].mean() / fitted[known].mean())
    least = LEAST**2 * float(np.median(fitted))
    scale: Floats = np.maximum(np.maximum(fitted, least), (own * ROUNDED) ** 2)
    scale[fills] = np.maximum(scale, squares)[fills]
    return scale


def _means(logs: Floats, known: NDArray[np.bool_]) -> Floats:
    counts = known.sum(axis=1)
    sums = np.where(known, logs, 0.0).sum(axis=1)
    return np.where(counts >= min(FEWEST, logs.shape[1]), sums / np.maximum(counts, 1), 0.0)


def _of_usual_size(logs: Floats, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The noise that is fitted: not that of a mask's fill, which is as much larger than the rest as the fill is."""
    usual = float(np.quantile(logs[known], USUAL))
    return known & (logs <= usual + 2 * TWO_SIZES)


def _better(weighed: Floats, others: Sequence[Floats]) -> float:
    """How much less noise a candidate shows than the draws, by its usual rows and columns: at most 1."""
    found = [1.0]
    for axis in (0, 1):
        if weighed.shape[1 - axis] < 4 or weighed.shape[axis] < FEWEST:
            continue
        noise = np.mean([array.mean(axis) for array in others], axis=0)
        ratios = weighed.mean(axis)[noise > 0] / noise[noise > 0]
        if len(ratios):
            found.append(sqrt(float(np.quantile(ratios, USUAL))))
    return max(BETTER, min(found))


def _worst(kind: str, error: Floats, others: Sequence[Floats], times: float, noise: float) -> Excess:
    """The part whose error is the most beyond the worst part of all draws; what is noisier than the rest excuses itself
    alone, by its own draws."""
    least = NOISIER * (1 + FEW_DRAWS / len(others))  # few draws are noisy themselves
    own, is_noisier = np.max(others, axis=0), np.mean(others, axis=0) > least
    usual = own if is_noisier.all() else own[~is_noisier]
    allowed = np.full_like(error, times * sqrt(float(usual.max())))
    if len(others) >= MANY_DRAWS:
        allowed[is_noisier] = np.maximum(allowed, OWN * np.sqrt(own))[is_noisier]
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(error > 0, np.sqrt(error) / allowed, 0.0)
    at = int(np.argmax(excess))
    where = ", ".join(map(str, np.unravel_index(at, excess.shape)))
    value = sqrt(float(error.reshape(-1)[at]))
    return _of(f"{kind} {where}", value, float(allowed.reshape(-1)[at]), noise, len(others))


def _factor(
    error: Floats, draws: Sequence[Floats], direction: Floats, scale: Floats | None, unit: float
) -> Excess:  # fmt: skip
    """A factor on all of a tensor, or on what was added to it: rounding leaves next to none."""
    weights = direction if scale is None else direction / scale
    energy = float((weights * direction).sum())
    if scale is None or not energy or error.size < SMALL:
        return Excess("a factor on all of it", 0.0, inf, 0.0, len(draws))
    value = abs(float((weights * error).sum())) / energy
    drawn = sqrt(sum(float((weights * draw).sum()) ** 2 for draw in draws) / len(draws)) / energy
    limit = max(FACTOR * drawn, CONSTANT * unit)
    return Excess("a factor on all of it", value, limit, value / limit, len(draws))


def _exact(error: Floats, own: Floats, unit: float, count: int) -> Excess:
    """Of calls that round nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        times = float(np.nan_to_num(np.abs(error) / (CLEAR * own), nan=0.0, posinf=inf).max(initial=0.0))
    return Excess("the whole", _relative(error, own, unit), CLEAR * unit, times, count)


def _of(where: str, value: float, limit: float, noise: float, count: int) -> Excess:
    times = value / limit if limit else inf if value else 0.0
    return Excess(where, value * noise, limit * noise, times, count)


def _relative(error: Floats, own: Floats, unit: float) -> float:
    size = float(np.sqrt(np.mean(own**2))) / unit if unit else 0.0
    return float(np.sqrt(np.mean(error**2))) / size if size else 0.0


def matrix(array: Array) -> Floats:
    """A tensor as rows: its last axis, with those before it while that is too short to be judged alone."""
    real = real_parts(array)
    return real.reshape(-1, matrix_of(real.shape)[1])


def from_matrix(rows: Floats, like: Array) -> Array:
    """The tensor of such rows."""
    return (rows.reshape(-1).view(np.complex128) if like.dtype.kind == "c" else rows).reshape(like.shape)


def _stored(array: Array, like: Array) -> Floats:
    """Numbers as a tensor's dtype holds them."""
    with np.errstate(over="ignore"):
        held = real_parts(array.astype(like.dtype))
    exact = real_parts(array)
    return np.where(np.isfinite(held), held, exact)


def _same_where_not_finite(exact: NDArray[np.float64], found: Array) -> bool:
    """Whether a tensor is NaN and infinite where it should be, and there alone: beyond its dtype's range it may be so
    for a number that float64 holds."""
    numbers = real_parts(found)
    if np.isfinite(numbers).all() and np.isfinite(exact).all():
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        held = real_parts(exact.astype(found.dtype)) if found.dtype.kind != "c" else exact
    beside = ~(np.isfinite(numbers) & np.isfinite(held))
    overflown = np.isinf(held) & np.isfinite(exact)  # rounding decides on which side of the largest number it falls
    beside &= ~(overflown & np.isfinite(numbers))
    return np.array_equal(numbers[beside], held[beside], equal_nan=True)


def _off(array: Array, exact: NDArray[np.float64]) -> Floats:
    """How far a tensor is from what it should be, as rows, where both are finite."""
    return matrix(_finite(real_parts(array) - exact))


def _finite(array: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isfinite(array), array, 0.0)
