"""Behind a flip: rows that were chosen otherwise are another computation, all other rows are still the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
        """How it comes that a module beside one that chose was given as many rows on both sides, and others: on each
        side they are those of one tensor that this side chose the module for."""
        for site in self._beside(judged.site):
            for source in producers:
                rows = _gathered(self.load(judged.pair), self.load(self.limits.items[source].pair), self.choices[site])
                if rows is None:
                    continue
                error = _error_elsewhere(*self.load(judged.pair), rows) or 0.0
                if error > self.limits.limit(item, producers, self.error(source)):
                    continue
                self.given[judged.site] = site
                self.gathered.add(judged.site)
                self.moved[judged.site] = rows, error
                others = f"{int(rows.sum())} of {rows.size} rows that were sent here are others"
                return f"{others}, as chosen at near-ties of {site.name}"
        return None

    def _beside(self, site: Site) -> Iterator[Site]:
        """Choices that were taken beside a module, or around it."""
        for choice in self.choices:
            around = choice.name.rpartition(".")[0]
            if choice.step == site.step and site.name.startswith(f"{around}." if around else ""):
                yield choice

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
        inherited = max((self.moved[s][1] if s in self.moved else self.error(s) for s in producers), default=0.0)
        if error is None or error > self.limits.limit(item, producers, inherited):
            return None
        self.moved[judged.site] = moved, error
        return f"{int(moved.sum())} of {moved.size} rows were chosen otherwise at a near-tie before; the others agree"


def _gathered(values: tuple[Array, Array], source: tuple[Array, Array], choices: tuple[Array, Array]) -> Rows | None:
    """Which rows of a tensor are others on both sides, where each side's are all those of `source` that it chose one
    and the same number for; None where they are not."""
    count = len(values[0]) if values[0].ndim == 2 else 0
    rows = choices[0].size if choices[0].ndim == 1 else prod(choices[0].shape[:-1])
    width = values[0].shape[-1] if count else 0
    if not count or values[1].shape != values[0].shape or any(one.size != rows * width for one in source):
        return None
    first, second = (choice.reshape(rows, -1) for choice in choices)
    for number in np.unique(first[first != second]):
        at = [np.flatnonzero((choice == number).any(-1)) for choice in (first, second)]
        if any(len(one) != count for one in at):
            continue
        taken = (whole.reshape(rows, width)[places] for whole, places in zip(source, at, strict=True))
        if all(np.array_equal(*both) for both in zip(values, taken, strict=True)):
            return np.asarray(at[0] != at[1])
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
