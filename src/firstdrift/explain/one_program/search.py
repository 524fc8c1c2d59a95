"""The engine: changes of a program, the cheap before the expensive, until some give what was found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray

from ...program.edits import Edit
from ...program.reruns import Rerun
from ..changes import larger, masks, moves, several, states, terms
from ..changes.constants import Constant, constants, extras, settings, usual, without
from ..changes.rates import rates
from ..changes.states import SHORT, dtypes, formats
from ..labels import LABELS
from ..naming import CHANGED
from .around import Around, Change
from .trying import Trial, Tried

TELLING = 16  # elements found for every number fitted to them
MOST_TOGETHER = 6  # calls of one operation that are changed in pairs
TABLES = (*terms.TABLE, *masks.TABLE, *moves.TABLE, *larger.TABLE, *states.TABLE, without, settings)
READ = (states.stale, several.conjugates, several.leaves, several.exchanged)
ERRORS = (IndexError, TypeError, ValueError, KeyError, AttributeError, AssertionError)


def changes_that_fit(trial: Trial, arounds: Sequence[Around]) -> list[Tried]:
    """What gives what was found: first what is left out or taken otherwise; then order, sources, numbers, formats."""
    for stage in (_gates, _absent, _masks, _simple, _read, _numbers, _extra, _formats):
        found = list(stage(trial, arounds))
        if found or trial.late:
            return found
    return []


def _gates(trial: Trial, arounds: Sequence[Around]) -> Iterator[Tried]:
    """Blocks of a recurrent layer's weights in another order: few ways, of a loop of many calls."""
    chosen = {around.number for around in arounds}
    for change in several.blocks(trial.rerun):
        if chosen & set(change.edit):
            yield from _tried(trial, change)


def _absent(trial: Trial, _: Sequence[Around]) -> Iterator[Tried]:
    """Tensors that only this side reads do nothing."""
    changes = list(several.absent(trial.rerun, trial.only.tensors))
    zeros = [one for one in changes if one.kind == "zeros"]
    for change in [*changes, *([together(zeros)] if len(zeros) > 1 else [])]:
        yield from _tried(trial, change)


def _simple(trial: Trial, arounds: Sequence[Around]) -> Iterator[Tried]:
    """One call made otherwise; calls of one operation made otherwise alike: all, all in one place of a loop, or two."""
    changes = [(around, change) for around in arounds for change in rewrites(around)]
    groups = _alike(changes)
    loops = [tried for group in groups if len(group) > MOST_TOGETHER for tried in _tried(trial, together(group))]
    yield from loops
    for _, change in changes if not loops else ():
        yield from _tried(trial, change)
    for group in groups if not loops else ():
        if 1 < len(group) <= MOST_TOGETHER:
            for some in chain([group], combinations(group, 2) if len(group) > 2 else ()):
                yield from _tried(trial, together(some))


def _alike(changes: Sequence[tuple[Around, Change]]) -> list[list[Change]]:
    """Changes of one kind, of all calls of an operation, and of those among the same neighbours."""
    found: dict[tuple[object, ...], dict[int, Change]] = {}
    for around, change in changes:
        key = around.op, change.kind
        axes = (("", change.kind),) if change.kind.startswith("dim") else ()  # of one norm, each reduction's
        for one in (key, (*key, around.following, around.preceding), *axes):
            found.setdefault(one, {})[around.number] = change
    return [list(group.values()) for group in {(key[1], *group): group for key, group in found.items()}.values()]


def rewrites(around: Around) -> Iterator[Change]:
    """Every way in which one call may have been another."""
    for table in TABLES:
        try:
            yield from table(around)
        except ERRORS:  # a call of another form than this table knows
            continue


def together(changes: Sequence[Change]) -> Change:
    """Several changes at once."""
    edit: dict[int, object] = {}
    for change in changes:
        edit |= change.edit
    named = max(changes, key=lambda one: (one.label != CHANGED, LABELS[one.label].specificity))
    more = f" (as in {len(changes) - 1} more call{'s' * (len(changes) > 2)})"
    back = named.undone and named.undone + more
    return replace(named, said=named.said + more, undone=back, edit=edit, bits=named.bits + 2.0)  # type: ignore[arg-type]


def _read(trial: Trial, arounds: Sequence[Around]) -> Iterator[Tried]:
    """Neighbours exchanged, tensors read turned or in another's place."""
    chosen = {one.number for one in arounds}
    for change in chain(*(some(trial.rerun) for some in READ)):
        if chosen & set(change.edit):
            yield from _tried(trial, change)
    for around in arounds:
        try:
            for change in chain(several.orders(around), several.sources(around)):
                yield from _tried(trial, change)
        except ERRORS:
            continue


def _tried(trial: Trial, change: Change) -> Iterator[Tried]:
    found = trial.tried(change)
    if found is not None:
        yield found


def _masks(trial: Trial, arounds: Sequence[Around]) -> Iterator[Tried]:
    """Masks that the reference has not, read off from what was found."""
    for around in arounds:
        for change in masks.added(around, trial.found):
            yield from _tried(trial, change)


def _numbers(trial: Trial, arounds: Sequence[Around]) -> Iterator[Tried]:
    """Another number in the place of one that a call is given, or of all that are the same."""
    for change in states.exchanged(arounds):
        yield from _tried(trial, change)
    known = [constant for around in arounds for constant in constants(around)]
    alike: dict[object, list[Constant]] = {}
    for constant in known:
        alike.setdefault(constant.value, []).append(constant)
        alike.setdefault((constant.around.op, constant.name, constant.value), []).append(constant)
    together_ = {tuple(id(constant) for constant in group): group for group in alike.values() if len(group) > 1}
    for group in [*([constant] for constant in (*known, *rates(trial.rerun))), *together_.values()]:
        yield from _fitted(trial, group)


def _fitted(trial: Trial, group: Sequence[Constant]) -> Iterator[Tried]:
    first = group[0]

    def edit(value: float) -> Edit:
        made: dict[int, object] = {}
        for constant in group:
            made |= constant.edit(value)
        return made  # type: ignore[return-value]

    more = f" (as in {len(group) - 1} more)" if len(group) > 1 else ""
    given = [one for one in (*first.others, *trial.only.numbers) if not first.whole or one == round(one)]
    known = among(given, first.value, lambda value: trial.left(edit(value)), trial.enough)
    if known is not None and known[1] <= trial.enough:
        change = first.change(known[0], free=0, known=True)
        yield from _tried(trial, replace(change, edit=edit(known[0]), said=change.said + more))
        return
    few = trial.telling < TELLING
    fit = whole if first.whole else partial(among, usual(trial.rerun, first.value)) if few else fitted
    best = fit(first.value, lambda value: trial.left(edit(value)), trial.enough)
    if best is not None and best[1] <= trial.enough and best[0] != first.value:
        value = _fewest_digits(best[0], lambda value: trial.left(edit(value)), trial.enough)
        change = first.change(value, free=1)
        free = 0 if first.whole or few else 1
        yield from _tried(trial, replace(change, said=change.said + more, edit=edit(value), free=free))


def _fewest_digits(value: float, left: Left, enough: float) -> float:
    """The number of fewest digits that does as well."""
    for digits in range(1, 7):
        short = float(f"{value:.{digits}g}")
        if abs(short - value) <= 1e-2 * abs(value):
            array = left(short)
            if array is not None and float(np.linalg.norm(array)) <= enough:
                return short
    return value


def _extra(trial: Trial, arounds: Sequence[Around]) -> Iterator[Tried]:
    """A factor or an offset that the code does not have."""
    for around in arounds if trial.telling >= TELLING else ():
        for extra in extras(around):
            yield from _fitted(trial, [extra])


def _formats(trial: Trial, arounds: Sequence[Around]) -> Iterator[Tried]:
    """Calls in a shorter format; of few numbers, which some call meets by chance, in one that a program has."""
    chosen = {around.number for around in arounds}
    known = trial.telling >= TELLING or not (dtypes(trial.rerun) | trial.only.dtypes).isdisjoint(SHORT)
    for change in formats(trial.rerun) if known else ():
        if chosen & set(change.edit):
            yield from _tried(trial, change)


def arounds_of(rerun: Rerun) -> list[Around]:
    """The calls of a program, the last first: changes of these take the least work."""
    return [Around(rerun, number) for number in reversed(list(rerun.calls))]


Floats = NDArray[np.float64]
Left = Callable[[float], "Floats | None"]  # what a number leaves; nothing where it cannot be tried

STARTS = (0.7, -0.7, 2.3, -2.3, 4.6, -4.6)  # logarithms of the factors that a fit begins with, too
MOST_STEPS = 14
CONVERGED = 1e-13  # of a number
WIDTH = 1e-6  # of a number, by which its slope is measured
NEARBY = (1, -1, 2, -2, 3, -3)


def fitted(value: float, left: Left, enough: float) -> tuple[float, float] | None:
    """The number that leaves least, beginning with the one given, and the size of what it leaves."""
    best = _least((value, -value, 0.0, 1.0, *(value * math.exp(one) for one in STARTS)), left, enough)
    for _ in range(MOST_STEPS):
        if best is None:
            return None
        step = _step(best[0], left)
        tried = None if step is None else _least((best[0] + step, best[0] + 0.25 * step), left, 0.0)
        if tried is None or tried[1] >= best[1]:
            break
        moved, best = abs(tried[0] - best[0]), tried
        if moved <= CONVERGED * abs(best[0]):
            break
    return best


def whole(value: float, left: Left, enough: float) -> tuple[float, float] | None:
    """The whole number nearby that leaves least."""
    return _least((value + by for by in NEARBY), left, enough)


def among(values: Iterable[float], value: float, left: Left, enough: float) -> tuple[float, float] | None:
    """The one of some numbers that leaves least: too few elements to fit any other."""
    return _least((one for one in values if one != value), left, enough)


def _least(values: Iterable[float], left: Left, enough: float) -> tuple[float, float] | None:
    best: tuple[float, float] | None = None
    for value in dict.fromkeys(values):
        array = left(value)
        size = math.inf if array is None else float(np.linalg.norm(array))
        if math.isfinite(size) and (best is None or size < best[1]):
            best = value, size
        if best is not None and best[1] <= enough:
            break
    return best


def _step(now: float, left: Left) -> float | None:
    width = WIDTH * abs(now) or WIDTH
    here, beside = left(now), left(now + width)
    if here is None or beside is None:
        return None
    slope = (beside - here).reshape(-1) / width
    square = float(slope @ slope)
    return -float(slope @ here.reshape(-1)) / square if square > 0 and math.isfinite(square) else None
