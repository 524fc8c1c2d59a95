"""Floats rounded to whole steps and kept as floats, as fake quantisation does, with another rule of rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...traces import Array
from ..agreement import Floats, floats
from ..evidence import Evidence
from ..hypotheses import DOMINANT, Finding, Hypothesis
from ..screening import positions, sampled
from .quantisers import ROUNDINGS

FEWEST = 32  # numbers that show a step
TRIED = 1 << 14  # elements by which a rule is tried
SHOWN = 1 << 18  # elements by which the steps of all slices are read
MOST_SLICES = 1 << 13
LEVELS = 1 << 16  # steps from zero to the largest number, beyond which a grid is that of a float
STRAIGHT = 0.02  # of a step: how far numbers may lie beside the grid
SHARE = 0.99  # of the elements, where noise moves some over a tie
USUAL = ("ties to even", "ties away from zero", "ties upwards", "towards zero", "downwards")
NEAR = 0.25  # of a step: how far from a tie a number may be that another rule of rounding moves
SURE = 0.9  # of the numbers as near to a tie, of which most must have moved
FEWEST_MOVED = 12  # numbers that move all one way, which is no chance


@dataclass(frozen=True, slots=True)
class _Sample:
    """Some numbers in steps: what was rounded, and the whole steps that both sides made of it."""

    at: NDArray[np.intp]
    steps: Floats
    ours: Floats
    counts: Floats
    theirs: Floats
    found: Floats
    low: float
    high: float

    def missed(self, rounding: str, of: Floats, counts: Floats) -> int:
        """How many whole steps a rule does not give."""
        return int((np.clip(ROUNDINGS[rounding](of), self.low, self.high) != counts).sum())


def fake_quantiser(evidence: Evidence) -> Iterator[Finding]:
    """Both sides are whole steps of one grid, made of the same numbers by two rules of rounding."""
    if evidence.site.phase != "fwd" or evidence.expected.dtype.kind != "f" or evidence.expected.size < FEWEST:
        return
    if not (np.isfinite(evidence.expected).all() and np.isfinite(evidence.found).all()):
        return
    for step in _steps(evidence):
        for key, x in evidence.inputs.items():
            y = evidence.candidate_inputs.get(key)
            if y is None or not x.shape == y.shape == evidence.expected.shape or x.dtype.kind != "f":
                continue
            found = _otherwise(evidence, step, x, y)
            if found is not None:
                yield found
                return


def _otherwise(evidence: Evidence, step: Floats, x: Array, y: Array) -> Finding | None:
    """Another rule of rounding, where the reference has a usual one."""
    some = _sample(evidence, step, x, y)
    rule = min(USUAL, key=lambda one: some.missed(one, some.ours, some.counts))
    if some.missed(rule, some.ours, some.counts) > (1 - SHARE) * len(some.at):
        return None
    others = [one for one in ROUNDINGS if one != rule]
    other = min(others, key=lambda one: some.missed(one, some.theirs, some.found))
    left, unexplained = (some.missed(one, some.theirs, some.found) for one in (other, rule))
    if left < DOMINANT**2 * unexplained:
        said = f"numbers are rounded to the grid {other} instead of {rule}"
        made = np.asarray(np.clip(ROUNDINGS[other](floats(y) / step), some.low, some.high) * step)
        return Finding("rounding-mode", said, made, 0, {"rounding": other, "reference_rounding": rule})
    if (way := _one_way(some, rule)) is None:
        return None
    said = f"numbers near a tie are one step off, all {way}: ties are rounded otherwise, or twice"
    return Finding("rounding-mode", said, None, 1, {"moved": unexplained, "way": way}, 0.0)


def _steps(evidence: Evidence) -> Iterator[Floats]:
    """The steps of grids that both sides lie on: one for all, or one a slice of an axis, shaped to broadcast."""
    expected, found = evidence.expected, evidence.found
    for axis in (None, *reversed(range(expected.ndim if expected.ndim > 1 else 0))):
        rows = _grouped(expected, axis)
        if rows.shape[1] < FEWEST or len(rows) > MOST_SLICES:
            continue
        steps = _gaps(rows[:, positions(rows.shape[1], max(FEWEST, SHOWN // len(rows)))])
        if steps is None or not _whole(rows, steps) or not _whole(_grouped(found, axis), steps):
            continue
        shape = [1] * expected.ndim
        if axis is not None:
            shape[axis] = expected.shape[axis]
        yield steps.reshape(shape)


def _grouped(array: Array, axis: int | None) -> Array:
    return array.reshape(1, -1) if axis is None else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def _gaps(rows: Array) -> Floats | None:
    """The smallest distance of each row's sizes from each other and from zero, made to divide the largest."""
    sizes = np.sort(np.abs(floats(rows)), axis=1)
    largest = sizes[:, -1:]
    gaps = np.diff(sizes, axis=1, prepend=0.0)
    smallest = np.where(gaps > largest / (4 * LEVELS), gaps, np.inf).min(axis=1, keepdims=True)
    levels = np.round(largest / smallest)
    if not ((levels >= 2) & (levels <= LEVELS)).all():
        return None
    steps = largest / levels
    return np.asarray(steps) if _whole(rows, steps) else None


def _whole(rows: Array, steps: Floats) -> bool:
    some = rows[:, positions(rows.shape[1], max(FEWEST, TRIED // len(rows)))]
    for part in (some, rows):  # what is no grid shows at once
        counts = floats(part) / steps
        if float(np.abs(counts - np.round(counts)).max()) > STRAIGHT:
            return False
    return True


def _sample(evidence: Evidence, step: Floats, x: Array, y: Array) -> _Sample:
    """Numbers from everywhere, and those that differ."""
    shape = evidence.expected.shape
    sides = floats(evidence.expected), floats(evidence.found)
    differ = np.flatnonzero(np.abs(sides[1] - sides[0]) > 0.5 * step)
    at = np.unique(np.concatenate([positions(evidence.expected.size, TRIED), differ[:TRIED]]))
    steps = sampled(np.broadcast_to(step, shape), at)
    counts, found = (np.round(sampled(one, at) / steps) for one in sides)
    every = [float(end(one / step)) for one in sides for end in (np.min, np.max)]
    low, high = round(min(every)), round(max(every))
    return _Sample(at, steps, sampled(x, at) / steps, counts, sampled(y, at) / steps, found, low, high)


def _one_way(some: _Sample, rule: str) -> str | None:
    """How the numbers near ties moved, where all moved alike by one step, and hardly any as near stayed.

    Another scale moves those of large numbers only, and noise moves them both ways.
    """
    usual = np.clip(ROUNDINGS[rule](some.theirs), some.low, some.high)
    moved = some.found - usual
    differ = moved != 0
    tie = np.abs(some.theirs - np.floor(some.theirs) - 0.5)
    if differ.sum() < FEWEST_MOVED or np.abs(moved).max() > 1 or float(tie[differ].max()) > NEAR:
        return None
    inside = (some.theirs > some.low) & (some.theirs < some.high)
    near = inside & (tie <= float(np.quantile(tie[differ], SURE)))
    other = np.where(usual > some.theirs, usual - 1, usual + 1)  # the step on the other side of the tie
    ways = {
        "upwards": other > usual,
        "downwards": other < usual,
        "away from zero": np.abs(other) > np.abs(usual),
        "towards zero": np.abs(other) < np.abs(usual),
        "to even numbers of steps": other % 2 == 0,
    }
    for way, mask in ways.items():
        if mask[differ].all() and differ[near & mask].mean() >= SURE:
            return way
    return None


HYPOTHESES: tuple[Hypothesis, ...] = (fake_quantiser,)
