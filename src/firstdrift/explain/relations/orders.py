"""Slices along an axis in another order: which slice of one tensor is which of the other, and what such an order is
called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import Floats, limit
from .screening import positions

Order = NDArray[np.intp]  # slice i of what was found is slice order[i] of what was expected

FINGERPRINT = 1 << 14  # numbers looked at per axis
WIDEST = 64  # of these per slice
COMPARED = 2048  # slices compared each with each; more are compared along a line
UNLIKE = 4.0  # times the tolerance: how far other slices must lie from one that is recognised
DISTINCT = 0.9  # of the slices must be unlike the others before a match means anything
CANCELLED = 2e-7  # of a slice: what a distance computed from squares may be off
CROWD = 4  # slices at one place of a line, above which they cannot be told apart
LONGEST = 1 << 18  # slices along an axis, above which patterns are not sought
MOST_PARTS = 4  # equal blocks, all orders of which are tried
SHIFTS = (1, -1, 2, -2, 3, -3, 4, -4)


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

    @property
    def slack(self) -> float:
        """What all slices together may be off."""
        return self.tolerance * float(np.sqrt(self.count))

    def fits(self, order: Order) -> bool:
        """Whether found is expected with its slices taken in this order."""
        return float(np.linalg.norm(self.found - self.expected[order])) <= self.slack

    def may_be_reordered(self) -> bool:
        """Whether the slices are the same in some order, as far as one number of each tells."""
        direction = _direction(self.expected)
        expected, found = np.sort(self.expected @ direction), np.sort(self.found @ direction)
        return float(np.linalg.norm(expected - found)) <= self.slack

    def moved(self) -> Order:
        """The slices of found that are not where they were expected."""
        return np.flatnonzero(np.linalg.norm(self.found - self.expected, axis=1) > self.tolerance)


@dataclass(frozen=True, slots=True)
class Pattern:
    """An order of slices; `kind` says of which sort it is, `numbers` describe it.

    blocks: the order of equal blocks; halves, interleaved, deinterleaved: how many groups of which size are each turned
    so; transposed: blocks run over outer x inner x the size of a block; rolled: by how many; runs: how many blocks of
    which size; reversed, permutation.
    """

    kind: str
    order: Order
    numbers: tuple[int, ...] = ()

    @property
    def free(self) -> int:
        """How many numbers were read off the slices to say it."""
        if self.kind == "runs":
            return self.numbers[0]
        return int(np.count_nonzero(self.order != np.arange(len(self.order)))) if self.kind == "permutation" else 0


def every_axis(evidence: Evidence) -> Iterator[Slices]:
    """The slices along each axis that has several, the last first; not those of tensors that are not finite."""
    for axis in reversed(range(evidence.expected.ndim)):
        count = evidence.expected.shape[axis]
        if count < 2:
            continue
        rest = evidence.expected.size // count
        at = positions(rest, max(1, min(WIDEST, FINGERPRINT // count)))
        expected, found = (_columns(array, axis, at) for array in (evidence.expected, evidence.found))
        size = float(max(np.linalg.norm(expected), np.linalg.norm(found)) / np.sqrt(count))
        if size > 0 and np.isfinite(expected).all() and np.isfinite(found).all():
            yield Slices(axis, expected, found, 2 * limit(evidence) * size)


def _columns(array: Array, axis: int, at: Order) -> Floats:
    shape = tuple(size for one, size in enumerate(array.shape) if one != axis)
    where = np.unravel_index(at, shape) if shape else ()
    index: tuple[Any, ...] = (slice(None), *where)
    taken = np.moveaxis(array, axis, 0)[index]
    return np.asarray(taken.reshape(array.shape[axis], -1), np.float64)


def pattern_of(one: Slices) -> Pattern | None:
    """The plainest order that makes found of expected; None where there is none or nothing moved."""
    if one.count <= LONGEST and len(one.moved()) and one.may_be_reordered():
        for pattern in named_patterns(one.count):
            if one.fits(pattern.order):
                return pattern
    order = matched(one)
    if order is None:
        return None
    sizes = np.diff(np.concatenate([[0], np.flatnonzero(np.diff(order) != 1) + 1, [len(order)]]))
    common = int(np.gcd.reduce(sizes))
    if common > 1 and len(np.unique(order)) == len(order):
        return Pattern("runs", order, (len(order) // common, common))
    return Pattern("permutation", order)


def named_patterns(count: int) -> Iterator[Pattern]:
    """Every order with a name of so many slices, plain ones first."""
    numbers = np.arange(count)
    divisors = [number for number in range(2, count + 1) if count % number == 0]
    for parts in range(2, MOST_PARTS + 1):
        if count % parts == 0 and count > parts:
            blocks = numbers.reshape(parts, -1)
            for order in list(permutations(range(parts)))[1:]:
                yield Pattern("blocks", blocks[list(order)].ravel(), order)
    yield from _patterns_of_halves(numbers, [size for size in reversed(divisors) if size % 2 == 0])
    for outer, inner in product(divisors, divisors):
        if count % (outer * inner) == 0:
            rest = count // (outer * inner)
            moved = numbers.reshape(outer, inner, rest).swapaxes(0, 1).ravel()
            yield Pattern("transposed", moved, (outer, inner, rest))
    if count > 2:
        yield Pattern("reversed", numbers[::-1].copy())
    for by in SHIFTS if count > 3 else ():
        yield Pattern("rolled", np.roll(numbers, by), (by,))


def _patterns_of_halves(numbers: Order, sizes: Sequence[int]) -> Iterator[Pattern]:
    """Halves against alternating slices, of the whole axis first, then of each group of a size, as of a head; halves of
    groups that are exchanged."""
    count = len(numbers)
    for size in (size for size in sizes if size > 2):
        groups = (count // size, size)
        yield Pattern("interleaved", numbers.reshape(-1, 2, size // 2).swapaxes(1, 2).ravel(), groups)
        yield Pattern("deinterleaved", numbers.reshape(-1, size // 2, 2).swapaxes(1, 2).ravel(), groups)
    for size in (size for size in sizes if size < count):
        moved = np.roll(numbers.reshape(-1, size), size // 2, axis=1)
        yield Pattern("halves", moved.ravel(), (count // size, size))


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
    reach = max(one.tolerance, CANCELLED * float(np.linalg.norm(one.expected)) / np.sqrt(one.count))
    doubtful = ((others > reach) & (others <= UNLIKE * reach)).any(axis=1)
    return near if doubtful.mean() <= 1 - DISTINCT else None


def _distances(a: Floats, b: Floats) -> Floats:
    square = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return np.asarray(np.sqrt(np.maximum(square, 0.0)))


def _direction(slices: Floats) -> Floats:
    """A fixed random direction of unit length."""
    chosen = np.random.default_rng(len(slices)).standard_normal(slices.shape[1])
    return np.asarray(chosen / np.linalg.norm(chosen), np.float64)


def _nearest_on_a_line(one: Slices, moved: Order) -> Order | None:
    """The same for many slices, of which only the neighbours along a random direction are compared."""
    direction = _direction(one.expected)
    line = one.expected @ direction
    order = np.argsort(line)
    ranked = line[order]
    wanted = one.found[moved] @ direction
    reach = UNLIKE * one.tolerance
    crowd = np.searchsorted(ranked, wanted + reach) - np.searchsorted(ranked, wanted - reach)
    if (crowd > CROWD).mean() > 1 - DISTINCT:
        return None
    at = np.searchsorted(ranked, wanted)
    choices = order[np.clip(at[:, None] + np.arange(-CROWD, CROWD), 0, one.count - 1)]
    distance = np.linalg.norm(one.expected[choices] - one.found[moved][:, None], axis=2)
    return np.asarray(np.take_along_axis(choices, distance.argmin(axis=1)[:, None], axis=1)[:, 0])
