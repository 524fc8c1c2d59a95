"""Decisions between near-ties: which expert, which maximum, which side of a kink.

Where a decision was taken on the way to a tensor and not recorded, correct code may have taken it otherwise. The calls
are run some more times with every number moved by a few roundings, each run deciding for itself. A part of the tensor
that jumps in one of these runs, and is then what the candidate has, was decided the other way; the rest must be within
noise. A decision that follows from recorded numbers is none of these: it does not jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import wide
from ...core.sites import Site
from ...core.traces import Array
from ...pair.pairs import Pair
from ..case import Case
from ..measure.result import Finding, Verdict, Why
from ..noise import MANY_DRAWS, Excess, excess_of, from_matrix, matrix, rounding_of
from ..replay.introducing import DRIFT, before, draw_of, expected_at, found_at, part_of
from ..replay.replays import Replays

BY = "near ties"
RUNS = 16
TIMES = 4.0  # roundings by which each number of a run is moved
SYSTEMATIC = 16  # near-ties that are not all decided one way by chance
REACH = 2.0  # times what decisions move a row or element by, one of the candidate may be off
JUMP = 12.0  # times the largest noise drawn for a row or element, what a decision moves it by at least
SLIGHT = 2.0**-6  # of these roundings: what is moved by as much less was moved along, and not decided otherwise
ALONG = 2.0  # times as far as in proportion, or as little, nothing goes that is only moved along

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Runs:
    """What a tensor is off by in draws that decide alike (`plain`), in runs that decide for themselves, and in the same
    runs moved by far less (`slight`): what goes along in proportion was moved, as the larger of two numbers is, and not
    decided otherwise."""

    plain: Sequence[Floats]
    free: Sequence[Floats]
    slight: Sequence[Floats] = ()

    @classmethod
    def of(cls, pair: Pair, replays: Replays, expected: Array, runs: Sequence[Array]) -> _Runs | None:
        """Those of a pair; None where nothing can be drawn. Where all digits are on record, nothing came in moved."""
        site = pair.reference.site
        plain = [draw_of(pair, replays)(seed) for seed in range(1, MANY_DRAWS + 1)]
        seeds = () if replays.is_whole(site) else range(1, RUNS + 1)
        slight = [part_of(pair, replays.drawn(site, seed, times=TIMES * SLIGHT, free=True)) for seed in seeds]
        offs = [[_off(array, expected) for array in some if array is not None] for some in (plain, runs, slight)]
        return cls(*offs) if offs[0] and len(offs[2]) == len(seeds) else None

    def jumps(self, at: int, by_rows: bool) -> Mask:
        """The rows or elements that a run moves by far more than noise that decides alike, and not in proportion."""
        moved = _sizes(self.free[at], by_rows)
        jumps: Mask = moved > JUMP * np.max([_sizes(array, by_rows) for array in self.plain], axis=0)
        if not self.slight:
            return jumps
        slight = [_sizes(array, by_rows) / SLIGHT for array in self.slight]
        apart = (slight[at] < moved / ALONG) | (slight[at] > moved * ALONG)
        far: Mask = jumps & apart & (moved > JUMP * np.min(slight, axis=0))
        return far


def near_tie(site: Site, case: Case, replays: Replays) -> Finding | None:
    """Whether a pair beyond noise is right but for decisions at near-ties; where too many fell otherwise to tell them
    apart, that is left open."""
    pair = case.items[site].pair
    made = pair.reference.site
    expected, candidate = expected_at(pair, replays), found_at(pair, replays)
    if replays.first(made) != made or expected is None or candidate is None or not replays.decides(made):
        return None
    runs = [part_of(pair, replays.drawn(made, seed, times=TIMES, free=True)) for seed in range(1, RUNS + 1)]
    known = [run for run in runs if run is not None and run.shape == expected.shape]
    if len(known) < RUNS:
        return None
    if candidate.dtype.kind in "iub":
        return _chosen(expected, candidate, known)
    noise = _Runs.of(pair, replays, expected, known)
    return (
        None if noise is None else _Jumps(pair, replays, case.unit(pair), expected, candidate, known, noise).finding()
    )


def _chosen(expected: Array, candidate: Array, runs: Sequence[Array]) -> Finding | None:
    """Whole numbers: every one that differs is what some run chose."""
    differing = expected != candidate
    seen = np.any([run == candidate for run in runs], axis=0)
    if not (seen | ~differing).all() or _is_a_rule(candidate, runs):
        return None
    facts = {"differing": int(differing.sum()), "count": int(candidate.size), "runs": len(runs), "proof": "replayed"}
    return Finding(BY, Verdict.FLIP, Why.NEAR_TIE, facts)


def _is_a_rule(candidate: Array, runs: Sequence[Array]) -> bool:
    """Whether a candidate decides all near-ties the same way, up or down: that is no chance, but another rounding."""
    lowest, highest = np.min(runs, axis=0), np.max(runs, axis=0)
    is_open = lowest != highest
    up = candidate[is_open] == highest[is_open]
    away = np.abs(candidate[is_open]) == np.maximum(*np.abs([lowest, highest]))[is_open]
    return int(is_open.sum()) >= SYSTEMATIC and any(one.all() or not one.any() for one in (up, away))


@dataclass(frozen=True, slots=True)
class _Jumps:
    """A tensor of floats, and the runs that decide for themselves."""

    pair: Pair
    replays: Replays
    unit: float
    expected: Array
    candidate: Array
    runs: Sequence[Array]
    noise: _Runs

    def finding(self) -> Finding | None:
        """A flip, where the rest is noise once the rows or elements are as in the runs; else perhaps one."""
        for by_rows in (True, False):
            other, taken = _decided_as(self.expected, self.candidate, self.runs, self.noise, by_rows)
            moved = int(taken.sum())
            left = self._left_around(other, taken[:, None] if by_rows else taken) if moved else None
            if left is not None and left.times <= DRIFT:
                count = len(matrix(wide(self.expected))) if by_rows else int(self.expected.size)
                facts = {
                    "differing": moved, "count": count, "what": "rows" if by_rows else "elements",
                    "runs": len(self.runs), "error": left.error, "limit": left.limit, "proof": "replayed",
                }  # fmt: skip
                return Finding(BY, Verdict.FLIP, Why.NEAR_TIE, facts)
        if not self._may_be_decided_otherwise():
            return None
        error, *spread = (_rms(_off(run, self.expected)) for run in (self.candidate, *self.runs))
        facts = {"error": error, "limit": REACH * max(spread), "runs": len(self.runs)}
        return Finding(BY, Verdict.INCONCLUSIVE, Why.MAYBE_FLIPPED, facts)

    def _left_around(self, other: Array, taken: Mask) -> Excess | None:
        """What is left of the candidate beside `other`, by the noise of draws; where that is from a run, its own on
        top."""
        more = from_matrix(np.where(taken, TIMES, 1.0) + np.zeros_like(self.noise.plain[0]), self.expected)
        drawing = draw_of(self.pair, self.replays)

        def draw(seed: int) -> Array | None:
            drawn = drawing(seed)
            if drawn is None:
                return None
            own = from_matrix(rounding_of(matrix(np.abs(wide(other))) * self.unit, seed), other)
            found: Array = wide(other) + more * (
                (wide(drawn) - wide(self.expected)) + np.where(np.greater(more, 1), own, 0.0)
            )
            return found

        return excess_of(other, self.candidate, self.unit, draw, before(self.pair, self.replays))

    def _may_be_decided_otherwise(self) -> bool:
        """Whether noise explains the candidate but for rows or elements that decisions move about as far, or all of it
        next to the nearest run, whose own noise is larger."""
        sides = before(self.pair, self.replays)
        for by_rows in (True, False):
            rest = _open_replaced(self.expected, self.candidate, self.runs, self.noise, by_rows)
            draw = draw_of(self.pair, self.replays)
            left = None if rest is None else excess_of(self.expected, rest, self.unit, draw, sides)
            if left is not None and left.times <= DRIFT:
                return True
        at = int(np.argmin([_rms(_off(run, self.candidate)) for run in self.runs]))
        nearest, drawing = self.runs[at], draw_of(self.pair, self.replays, times=TIMES)

        def around(seed: int) -> Array | None:
            drawn = drawing(seed)
            return None if drawn is None else wide(nearest) + (wide(drawn) - wide(self.expected))

        left = excess_of(nearest, self.candidate, self.unit, around, sides)
        return bool(self.noise.jumps(at, False).any()) and left is not None and left.times <= DRIFT


def _open_replaced(
    expected: Array, candidate: Array, runs: Sequence[Array], noise: _Runs, by_rows: bool
) -> Array | None:
    """What the candidate has, but as expected in the rows or elements that decisions move about as far; None where
    there are none."""
    base, found = matrix(wide(expected)), matrix(wide(candidate))
    reach = np.max([_sizes(_off(run, expected), by_rows) for run in runs], axis=0)
    moved = np.any([noise.jumps(at, by_rows) for at in range(len(runs))], axis=0)
    is_open = moved & (_sizes(found - base, by_rows) <= REACH * reach)
    if not is_open.any():
        return None
    kept = np.where(is_open[:, None] if by_rows else is_open, base, found)
    rest: Array = kept.reshape(expected.shape).astype(candidate.dtype)
    return rest


def _decided_as(
    expected: Array, candidate: Array, runs: Sequence[Array], noise: _Runs, by_rows: bool
) -> tuple[Array, Mask]:
    """What was expected, with the rows or elements that jump in a run as in the run that comes nearest, and which these
    are."""
    found = matrix(wide(candidate))
    best = matrix(wide(expected)).copy()
    taken = np.zeros(len(best) if by_rows else best.shape, dtype=bool)
    nearest = _sizes(found - best, by_rows)
    for at, run in enumerate(runs):
        other = matrix(wide(run))
        closer = noise.jumps(at, by_rows) & (_sizes(found - other, by_rows) < nearest)
        best[closer] = other[closer]
        nearest = np.where(closer, _sizes(found - other, by_rows), nearest)
        taken |= closer
    return from_matrix(best, expected), taken


def _sizes(error: Floats, by_rows: bool) -> Floats:
    sizes: Floats = np.sqrt(np.nan_to_num(error**2, nan=inf).mean(axis=1)) if by_rows else np.abs(error)
    return sizes


def _off(array: Array, expected: Array) -> Floats:
    return np.nan_to_num(matrix(wide(array)) - matrix(wide(expected)))


def _rms(off: Floats) -> float:
    return float(np.sqrt(np.mean(off**2)))
