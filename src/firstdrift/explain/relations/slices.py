"""Slices of a tensor along one axis, and which slice of one tensor is which of the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import Floats, limit
from .screening import positions

Order = NDArray[np.intp]

FINGERPRINT = 1 << 14  # numbers looked at per axis
WIDEST = 64  # of these per slice
COMPARED = 2048  # slices compared each with each; more are compared along a line
UNLIKE = 4.0  # times the tolerance: how far other slices must lie from one that is recognised
DISTINCT = 0.9  # of the slices must be unlike the others before a match means anything
CROWD = 4  # slices at one place of a line, above which they cannot be told apart


@dataclass(frozen=True, slots=True)
class Slices:
    """Some numbers of every slice along an axis, of what was expected and of what was found."""

    axis: int
    expected: Floats
    found: Floats
    tolerance: float  # of the distance between two slices that are the same

    @property
    def count(self) -> int:
        return len(self.expected)

    def fits(self, order: Order) -> bool:
        """Whether found is expected with its slices taken in this order."""
        error = float(np.linalg.norm(self.found - self.expected[order]))
        return bool(error <= self.tolerance * np.sqrt(self.count))

    def moved(self) -> Order:
        """The slices of found that are not where they were expected."""
        return np.flatnonzero(np.linalg.norm(self.found - self.expected, axis=1) > self.tolerance)


def slices(evidence: Evidence, axis: int) -> Slices | None:
    """Fingerprints of the slices along an axis; None where they are not finite or there is only one."""
    count = evidence.expected.shape[axis]
    if count < 2:
        return None
    rest = evidence.expected.size // count
    at = positions(rest, max(1, min(WIDEST, FINGERPRINT // count)))
    expected, found = (_columns(array, axis, at) for array in (evidence.expected, evidence.found))
    if not (np.isfinite(expected).all() and np.isfinite(found).all()):
        return None
    size = max(float(np.linalg.norm(expected)), float(np.linalg.norm(found))) / np.sqrt(count)
    return Slices(axis, expected, found, 2 * limit(evidence) * size) if size > 0 else None


def _columns(array: Array, axis: int, at: Order) -> Floats:
    shape = tuple(size for one, size in enumerate(array.shape) if one != axis)
    where = np.unravel_index(at, shape) if shape else ()
    index: tuple[Any, ...] = (slice(None), *where)
    taken = np.moveaxis(array, axis, 0)[index]
    return np.asarray(taken.reshape(array.shape[axis], -1), np.float64)


def matched(one: Slices) -> Order | None:
    """Which slice of expected each slice of found is, where every slice that moved is surely one of them."""
    moved = one.moved()
    if not len(moved) or one.count < 3:
        return None
    order = np.arange(one.count)
    near = _nearest(one, moved) if one.count <= COMPARED else _nearest_on_a_line(one, moved)
    if near is None:
        return None
    order[moved] = near
    left = np.linalg.norm(one.found[moved] - one.expected[near], axis=1)
    return order if (left <= one.tolerance).all() else None


def _nearest(one: Slices, moved: Order) -> Order | None:
    """The nearest slice of each that moved; None where many others are nearly as near."""
    distance = _distances(one.found[moved], one.expected)
    near = distance.argmin(axis=1)
    others = _distances(one.expected[near], one.expected)  # those that equal the nearest are as good as it
    doubtful = ((others > one.tolerance) & (others <= UNLIKE * one.tolerance)).any(axis=1)
    return near if doubtful.mean() <= 1 - DISTINCT else None


def _distances(a: Floats, b: Floats) -> Floats:
    square = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return np.asarray(np.sqrt(np.maximum(square, 0.0)))


def _nearest_on_a_line(one: Slices, moved: Order) -> Order | None:
    """The same for many slices, of which only the neighbours along a random direction are compared."""
    chosen = np.random.default_rng(one.count).standard_normal((one.expected.shape[1], 1))
    direction = (chosen / np.linalg.norm(chosen))[:, 0]
    line = one.expected @ direction
    order = np.argsort(line)
    ranked = line[order]
    wanted = one.found[moved] @ direction
    reach = one.tolerance
    crowd = np.searchsorted(ranked, wanted + UNLIKE * reach) - np.searchsorted(ranked, wanted - UNLIKE * reach)
    if (crowd > CROWD).mean() > 1 - DISTINCT:
        return None
    at = np.searchsorted(ranked, wanted)
    choices = order[np.clip(at[:, None] + np.arange(-CROWD, CROWD), 0, one.count - 1)]
    distance = np.linalg.norm(one.expected[choices] - one.found[moved][:, None], axis=2)
    return np.asarray(np.take_along_axis(choices, distance.argmin(axis=1)[:, None], axis=1)[:, 0])
