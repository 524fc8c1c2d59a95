"""Behind a flip: rows that were chosen otherwise are another computation, all other rows are still the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..compare.measuring import Measured
from ..compare.pairs import Pair
from ..compare.result import PairResult
from ..sites import Site
from ..traces import Array
from .limits import Limits
from .parts import LARGEST

Rows = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BehindFlips:
    """Follows choices that fell otherwise, row by row, as far as rows are not mixed with each other."""

    limits: Limits
    error: Callable[[Site], float]
    load: Callable[[Pair], tuple[Array, Array]]
    moved: dict[Site, tuple[Rows, float]] = field(default_factory=dict)  # the rows, and the error of all others
    choices: dict[Site, tuple[Array, Array]] = field(default_factory=dict)  # that differ
    given: dict[Site, Site] = field(default_factory=dict)  # what was given other rows, and the choices that it follows
    gathered: set[Site] = field(default_factory=set)  # what has other rows at the same places

    def begin(self, site: Site, choices: tuple[Array, Array]) -> None:
        """Choices that differ, each at a near-tie."""
        self.moved[site] = np.asarray(np.not_equal(*choices)), 0.0
        self.choices[site] = choices

    def error_of_others(self, site: Site) -> float:
        """The error of all rows that did not move."""
        return self.moved[site][1] if site in self.moved else self.error(site)

    def without_moved(self, choices: tuple[Array, Array], sources: Iterable[Site]) -> tuple[Array, Array] | None:
        """Both sides' choices, equal wherever they were taken by rows that had moved already; None where none had, or
        nobody knows which."""
        ours, theirs = choices
        moved = [_rows_of(self.moved[one][0], ours.shape) for one in sources if one in self.moved]
        for rows in moved:
            if rows is None:
                return None
            theirs = np.where(rows.reshape(*rows.shape, *(1,) * (ours.ndim - rows.ndim)), ours, theirs)
        return (ours, theirs) if moved else None

    def sent(self, pair: Pair) -> str | None:
        """How it comes that a module beside one that chose was given more rows on one side, or fewer."""
        ours, theirs = pair.reference.shape or (), pair.candidate[0].shape or ()
        if len(pair.candidate) > 1 or not ours or len(ours) != len(theirs) or ours[1:] != theirs[1:]:
            return None
        for site in self._beside(pair.site):
            if 0 < abs(ours[0] - theirs[0]) <= int(self.moved[site][0].sum()):
                self.given[pair.site] = site
                return f"{ours[0]} and {theirs[0]} rows were sent here, as chosen at near-ties of {site.name}"
        return None

    def sent_others(self, judged: PairResult, item: Measured, producers: Sequence[Site]) -> str | None:
        """How it comes that a module was given as many rows on both sides, and others: on each side they are those of
        one tensor that this side chose the module for. Either the choices fell otherwise, or those of before."""
        for site in self._choosers(judged.site, producers):
            for source in producers:
                found = self._gathered(judged.pair, source, site) if source != site else None
                if found is None:
                    continue
                error = _error_elsewhere(*self.load(judged.pair), found) or 0.0
                inherited = self.error_of_others(source)
                if error > self.limits.limit(item, producers, inherited):
                    continue
                self.given[judged.site] = site if site in self.moved else source
                self.gathered.add(judged.site)
                self.moved[judged.site] = found, error
                others = f"{int(found.sum())} of {found.size} rows that were sent here are others"
                chosen = f"at near-ties of {site.name}" if site in self.choices else "at a near-tie before"
                return f"{others}, as chosen {chosen}"
        return None

    def _choosers(self, site: Site, producers: Sequence[Site]) -> Iterator[Site]:
        """Choices that fell otherwise beside a module; and, where rows moved before, all that were taken beside it."""
        yield from self._beside(site)
        if any(one in self.moved for one in producers):
            taken = (one for one, item in self.limits.items.items() if item.is_integer and item.measurement is not None)
            yield from (
                one for one in taken if one.phase == "fwd" and one not in self.choices and _is_beside(one, site)
            )

    def _gathered(self, pair: Pair, source: Site, chooser: Site) -> Rows | None:
        """Which rows of a tensor are others: taken from other places of `source`, or from such as are others there."""
        choices = self.choices.get(chooser) or self.load(self.limits.items[chooser].pair)
        whole = self.load(self.limits.items[source].pair)
        if (places := _places(self.load(pair), whole, choices)) is None:
            return None
        rows = np.asarray(places[0] != places[1])
        if source in self.moved and source not in self.gathered:
            count = whole[0].size // whole[0].shape[-1]
            before = _rows_of(self.moved[source][0], (count,))
            return None if before is None else rows | before[places[0]]
        return rows

    def _beside(self, site: Site) -> Iterator[Site]:
        """Choices that fell otherwise beside a module, or around it."""
        return (choice for choice in self.choices if _is_beside(choice, site))

    def explain(self, judged: PairResult, item: Measured, producers: Sequence[Site]) -> str | None:
        """How an error follows from flips before it: all that noise does not explain is in the rows that moved."""
        shape = judged.pair.reference.shape or ()
        inside = f"{judged.site.name}." if judged.site.name else ""
        within = [by for one, by in self.given.items() if one.step == judged.site.step and one.name.startswith(inside)]
        before = [site for site in producers if site in self.moved]
        if before and self.gathered.issuperset(before) and all(len(self.moved[s][0]) == shape[0] for s in before):
            self.gathered.add(judged.site)  # its rows are those of the module it is in, and as many
        else:
            before = [site for site in before if site not in self.gathered]
        flips = dict.fromkeys((*before, *(() if judged.site in self.gathered else within)))
        rows = [_rows_of(self.moved[site][0], shape) for site in flips]
        if not rows or any(found is None for found in rows):
            return None
        axes = min(found.ndim for found in rows if found is not None)
        moved = np.any([found.reshape(*shape[:axes], -1).any(-1) for found in rows if found is not None], axis=0)
        error = _error_elsewhere(*self.load(judged.pair), moved)
        if moved.all() and judged.site in self.gathered:
            error = 0.0  # nothing that was sent here is the same on both sides
        inherited = max((self.error_of_others(site) for site in producers), default=0.0)
        if error is None or error > self.limits.limit(item, producers, inherited):
            return None
        self.moved[judged.site] = moved, error
        return f"{int(moved.sum())} of {moved.size} rows were chosen otherwise at a near-tie before; the others agree"


def _is_beside(choice: Site, site: Site) -> bool:
    """Whether a choice was taken beside a module, or around it."""
    around = choice.name.rpartition(".")[0]
    return choice.step == site.step and site.name.startswith(f"{around}." if around else "")


def _places(
    values: tuple[Array, Array], source: tuple[Array, Array], choices: tuple[Array, Array]
) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:  # fmt: skip
    """Where in `source` the rows of a tensor come from, if each side's are all those that it chose one and the same
    number for; None where they are not."""
    count = len(values[0]) if values[0].ndim == 2 else 0
    rows = choices[0].size if choices[0].ndim == 1 else prod(choices[0].shape[:-1])
    width = values[0].shape[-1] if count else 0
    if not count or values[1].shape != values[0].shape or any(one.size != rows * width for one in source):
        return None
    if not rows or choices[0].shape != choices[1].shape:
        return None
    first, second = (choice.reshape(rows, -1) for choice in choices)
    for number in np.unique(first):
        ours, theirs = (np.flatnonzero((choice == number).any(-1)) for choice in (first, second))
        if len(ours) != count or len(theirs) != count:
            continue
        taken = (whole.reshape(rows, width)[at] for whole, at in zip(source, (ours, theirs), strict=True))
        if all(np.array_equal(*both) for both in zip(values, taken, strict=True)):
            return ours, theirs
    return None


def _rows_of(moved: Rows, shape: tuple[int, ...]) -> Rows | None:
    """Which rows of a tensor belong to choices that moved, by its leading axes; None where these are not its own."""
    alike = 0
    while alike < min(len(shape), moved.ndim) and shape[alike] == moved.shape[alike]:
        alike += 1
    leading = moved.shape[:alike]
    for axes in range(2, len(shape)) if not alike else ():  # batch and tokens in one axis, as routers have them
        if prod(shape[:axes]) == moved.shape[0]:
            leading = shape[:axes]
    for axes in range(2, moved.ndim + 1) if shape and not alike else ():  # in one axis here, as before a router
        if prod(moved.shape[:axes]) == shape[0]:
            leading = shape[:1]
    return np.asarray(moved.reshape(*leading, -1).any(-1)) if leading else None


def _error_elsewhere(ours: Array, theirs: Array, moved: Rows) -> float | None:
    """The error of all other rows, on the scale of the whole tensor; None where there are none, or something in them
    is not a number."""
    if ours.size > LARGEST or ours.dtype.kind not in "fV" or moved.all():
        return None
    x, z = (np.asarray(array, np.float64)[~moved] for array in (ours, theirs))
    size = float(np.linalg.norm(np.asarray(ours, np.float64)))
    error = float(np.linalg.norm(z - x))
    return error / size if np.isfinite(error) and np.isfinite(size) and size > 0 else None
