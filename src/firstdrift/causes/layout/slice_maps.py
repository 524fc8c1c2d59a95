"""Which slices of one array are which of another: rows exchanged, interleaved, shifted; and the name of the pattern."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from ..agreement import Floats, distance

Map = NDArray[np.intp]  # slice i of the candidate is slice map[i] of the reference

LONGEST = 1 << 18  # slices along an axis, above which patterns are not sought


@dataclass(frozen=True, slots=True)
class Pattern:
    """A map of slices that has a name. `kind` is one of the keys below, `numbers` describe it."""

    kind: str
    indices: Map
    numbers: tuple[int, ...] = ()


def signatures(array: Floats, axis: int) -> Floats:
    """One number for every slice along an axis: its projection on a fixed random direction."""
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    direction = np.random.default_rng(7).standard_normal(rows.shape[1])
    return np.asarray(rows @ direction, np.float64)


def find_pattern(reference: Floats, candidate: Floats, tolerance: float) -> Pattern | None:
    """The simplest pattern that turns one list of signatures into the other, or None.

    The same signatures must be there in some order; then patterns are tried from the plainest on, and what has no
    name is a `permutation`.
    """
    count = len(reference)
    if not 2 <= count <= LONGEST or not (np.isfinite(reference).all() and np.isfinite(candidate).all()):
        return None
    order, other = np.argsort(reference, kind="stable"), np.argsort(candidate, kind="stable")
    if distance(reference[order], candidate[other]) > tolerance or distance(reference, candidate) <= tolerance:
        return None
    for pattern in named_patterns(count):
        if distance(reference[pattern.indices], candidate) <= tolerance:
            return pattern
    found = np.empty(count, np.intp)
    found[other] = order
    return _runs(found)


def named_patterns(count: int) -> Iterator[Pattern]:
    """Every pattern with a name for so many slices, plain ones first."""
    numbers = np.arange(count)
    divisors = [n for n in range(2, count + 1) if count % n == 0]
    yield from _exchanged_blocks(numbers)
    yield from _interleaved(numbers, divisors)
    yield from _transposed(numbers, divisors)
    yield Pattern("reversed", numbers[::-1].copy())
    yield Pattern("rolled", np.roll(numbers, 1), (1,))
    yield Pattern("rolled", np.roll(numbers, -1), (-1,))


def _exchanged_blocks(numbers: Map) -> Iterator[Pattern]:
    for parts in (2, 3, 4):
        if len(numbers) % parts == 0 and len(numbers) > parts:
            blocks = numbers.reshape(parts, -1)
            for order in list(permutations(range(parts)))[1:]:
                yield Pattern("blocks", blocks[list(order)].ravel(), order)


def _interleaved(numbers: Map, divisors: list[int]) -> Iterator[Pattern]:
    """Halves against alternating slices: on the whole axis first, then in each group of a size, as of a head."""
    for size in reversed(divisors):
        if size % 2 == 0 and size > 2:
            heads = (len(numbers) // size, size)
            yield Pattern("interleaved", numbers.reshape(-1, 2, size // 2).swapaxes(1, 2).ravel(), heads)
            yield Pattern("deinterleaved", numbers.reshape(-1, size // 2, 2).swapaxes(1, 2).ravel(), heads)


def _transposed(numbers: Map, divisors: list[int]) -> Iterator[Pattern]:
    """Two axes that were merged in the other order, above blocks of slices that stay together."""
    for outer in divisors:
        for inner in divisors:
            if len(numbers) % (outer * inner) == 0:
                rest = len(numbers) // (outer * inner)
                moved = numbers.reshape(outer, inner, rest).swapaxes(0, 1).ravel()
                yield Pattern("transposed", moved, (outer, inner, rest))


def _runs(found: Map) -> Pattern:
    """A permutation, as exchanged blocks where slices move in equal runs."""
    breaks = np.flatnonzero(np.diff(found) != 1) + 1
    sizes = np.diff(np.concatenate([[0], breaks, [len(found)]]))
    common = int(np.gcd.reduce(sizes))
    if common > 1:
        return Pattern("runs", found, (len(found) // common, common))
    return Pattern("permutation", found, (int(np.count_nonzero(found != np.arange(len(found)))),))
