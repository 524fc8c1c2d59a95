"""Both sides' programs, lined up by what they compute: which values both of them make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from ...core.traces import Array
from ...program.calls import Ref
from ...program.reruns import Rerun
from ..masked_fills import without_fills
from ..one_program.agreement import size_of
from ..one_program.trying import apart

FILL = 1e8  # numbers beyond this stand for what is masked
SAME = 1e-6  # relative: what two values differ by at most that are the same
SHARE = 1e-2  # of the drift's own size
MOST_AXES = 5


@dataclass(frozen=True)
class Lined:
    """Two programs and which of their values are the same."""

    reference: Rerun
    candidate: Rerun
    equal: frozenset[Ref]  # the reference's values that the candidate has as well
    twins: dict[Ref, Ref]  # by the candidate's values, the reference's that are most like them


def lined_up(reference: Rerun, candidate: Rerun, drift: float) -> Lined:
    """Find the values that both sides have."""
    near = min(SAME, SHARE * drift) if drift > 0 else SAME
    known: dict[tuple[int, ...], list[tuple[Ref, tuple[float, float]]]] = {}
    for ref in _values(reference):
        array = reference.array(ref)
        known.setdefault(array.shape, []).append((ref, _sums(array)))
    equal, twins = set[Ref](), dict[Ref, Ref]()
    for ref in _values(candidate):
        array, sums = candidate.array(ref), _sums(candidate.array(ref))
        close = [other for other, there in known.get(array.shape, ()) if _close(sums, there, near)]
        alike = [other for other in close if _equal(array, reference.array(other), near)]
        equal |= set(alike)
        if alike:
            twins[ref] = max(alike, key=lambda other: _likeness(reference, other, candidate, ref))
    return Lined(reference, candidate, frozenset(equal), twins)


def _likeness(reference: Rerun, ref: Ref, candidate: Rerun, other: Ref) -> tuple[bool, int]:
    """How much two equal values look like one another's: what makes them, how far on they are."""
    mine, own = reference.calls.get(ref.node), candidate.calls.get(other.node)
    made = mine.op == own.op if mine is not None and own is not None else mine is own
    return made, -abs(ref.node - other.node)


def _values(rerun: Rerun) -> Iterator[Ref]:
    return (ref for ref in rerun.refs if rerun.kind(ref) != "c")


def _sums(array: Array) -> tuple[float, float]:
    wide = np.abs(np.asarray(array, np.float64))
    wide = np.where(wide < FILL, wide, 1.0)
    return float(wide.sum()), float((wide * wide).sum())


def _close(one: tuple[float, float], other: tuple[float, float], near: float) -> bool:
    return all(abs(a - b) <= 4 * near * max(abs(a), abs(b), 1e-300) for a, b in zip(one, other, strict=True))


def shapes_of(array: Array, shape: Sequence[int]) -> Iterator[Array]:
    """An array in another shape: as it lies, and with its axes in other orders."""
    if array.size != int(np.prod(shape)):
        return
    yield array.reshape(shape)
    plain = array.squeeze()
    if 1 < plain.ndim <= MOST_AXES:
        for order in permutations(range(plain.ndim)):
            if order != tuple(range(plain.ndim)):
                turned = plain.transpose(order)
                if turned.shape == tuple(number for number in shape if number != 1):
                    yield turned.reshape(shape)


def _equal(one: Array, other: Array, near: float) -> bool:
    without = without_fills(np.asarray(one, np.float64), np.asarray(other, np.float64))
    a, b = (np.asarray(array, np.float64) for array in without)
    return apart(a, b) <= near * max(size_of(a), size_of(b))
