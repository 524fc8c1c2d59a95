"""Both sides' programs, lined up by what they compute: which value of the reference's the candidate has otherwise.

Values that both sides make are no cause. A value of the candidate's that, put in the place of one of the reference's,
makes the rest of the reference's program give what was found, holds the whole difference. The earliest such value
is where to look: there the difference is not yet mixed with anything, and both are known to float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import permutations

import numpy as np

from ...core.traces import Array
from ...program.calls import Call, Ref, reads
from ...program.edits import Edit, Fragment, made_by
from ...program.reruns import Rerun
from ..masked_fills import without_fills
from .around import MOVES, Around, base
from .trying import Question, Trial, apart, size

FILL = 1e8  # numbers beyond this stand for what is masked
SAME = 1e-6  # relative: what two values differ by at most that are the same
SHARE = 1e-2  # of the drift's own size
MOST_PAIRS = 600  # values of the candidate's that are put in the place of others
MOST_AXES = 5
SHAPED = frozenset({"view", "_unsafe_view", "unsqueeze", "squeeze", "expand", "alias", "detach", "clone", "reshape"})


@dataclass(frozen=True, slots=True)
class Narrow:
    """A value of the reference's program and the one in its place, with the number of the candidate's call."""

    ref: Ref
    value: Array
    candidate: Ref


@dataclass(frozen=True)
class Lined:
    """Two programs and which of their values are the same: by the candidate's, the reference's."""

    reference: Rerun
    candidate: Rerun
    same: dict[Ref, Ref]
    reference_same: frozenset[Ref]  # the reference's values that the candidate has as well, its axes in any order
    equal: frozenset[Ref]  # those of which also the axes are in the same order
    twins: dict[Ref, Ref]  # by the candidate's values, the reference's that are the same in the same shape
    near: float


def lined_up(reference: Rerun, candidate: Rerun, drift: float) -> Lined:
    """Find the values that both sides have."""
    near = min(SAME, SHARE * drift) if drift > 0 else SAME
    known: dict[int, list[tuple[Ref, tuple[float, float]]]] = {}
    for ref in _values(reference):
        array = reference.array(ref)
        known.setdefault(array.size, []).append((ref, _sums(array)))
    same: dict[Ref, Ref] = {}
    reference_same, equal, twins = set[Ref](), set[Ref](), dict[Ref, Ref]()
    for ref in _values(candidate):
        array = candidate.array(ref)
        sums = _sums(array)
        alike = [other for other, there in known.get(array.size, ()) if _close(sums, there, near)]
        alike = [other for other in alike if as_shaped(array, reference.array(other), near) is not None]
        exact = [
            other
            for other in alike
            if reference.shape(other) == array.shape and _equal(array, reference.array(other), near)
        ]
        reference_same |= set(alike)
        equal |= set(exact)
        for known_as, some in ((same, alike), (twins, exact)):
            if some:
                known_as[ref] = max(some, key=lambda other: _likeness(reference, other, candidate, ref))
    return Lined(reference, candidate, same, frozenset(reference_same), frozenset(equal), twins, near)


def _likeness(reference: Rerun, ref: Ref, candidate: Rerun, other: Ref) -> tuple[bool, bool, int]:
    """How much two equal values look like one another's: their shapes, what makes them, how far on they are."""
    mine, own = reference.calls.get(ref.node), candidate.calls.get(other.node)
    made = mine.op == own.op if mine is not None and own is not None else mine is own
    return reference.shape(ref) == candidate.shape(other), made, -abs(ref.node - other.node)


def _values(rerun: Rerun) -> Iterator[Ref]:
    return (ref for ref in rerun.refs if rerun.kind(ref) != "c")


def _sums(array: Array) -> tuple[float, float]:
    wide = np.abs(np.asarray(array, np.float64))
    wide = np.where(wide < FILL, wide, 1.0)
    return float(wide.sum()), float((wide * wide).sum())


def _close(one: tuple[float, float], other: tuple[float, float], near: float) -> bool:
    return all(abs(a - b) <= 4 * near * max(abs(a), abs(b), 1e-300) for a, b in zip(one, other, strict=True))


def as_shaped(array: Array, like: Array, near: float) -> Array | None:
    """An array in the shape of another that it is equal to; None where it is none in any order of axes."""
    for shaped in shapes_of(array, like.shape):
        if _equal(shaped, like, near):
            return shaped
    return None


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
    return apart(a, b) <= near * max(size(a), size(b))


def narrowed(lined: Lined, trial: Trial) -> list[Narrow]:
    """The earliest value that holds the whole difference; where no single one does, several that do together."""
    reference = _changed(lined.reference, lined.reference_same)
    candidate = _changed(lined.candidate, frozenset(lined.same))
    tried = 0
    for ref in reference:
        for other in candidate:
            for value in _candidates(lined, ref, other):
                tried += 1
                if tried > MOST_PAIRS or trial.late:
                    return []
                if _holds(trial, {ref: value}):
                    return [] if ref == lined.reference.target else [Narrow(ref, value, other)]
    return []


def at_the_end(lined: Lined, trial: Trial) -> list[Narrow]:
    """The tensor itself, where nothing before it holds the difference alone."""
    for value in _candidates(lined, lined.reference.target, lined.candidate.target):
        if lined.reference.target.node in lined.reference.calls and _holds(trial, {lined.reference.target: value}):
            return [Narrow(lined.reference.target, value, lined.candidate.target)]
    return []


def first_to_differ(lined: Lined, trial: Trial) -> list[Narrow]:
    """The first values that differ and that together hold the whole difference: both sides' values in a row, paired by
    what makes them, else by their shapes; what comes first is left out until the rest holds."""
    for by in (_made_so, _shaped_so):
        pairs = _paired(lined, by)
        while pairs and not trial.late:
            first = [
                pair
                for pair in pairs
                if not any(_reads(lined.reference, pair.ref, other.ref) for other in pairs if other is not pair)
            ]
            if any(narrow.ref == lined.reference.target for narrow in first):
                break
            if _holds(trial, {narrow.ref: narrow.value for narrow in first}):
                return _fewest(first, trial)
            pairs = [pair for pair in pairs if pair not in first]
    return []


def _paired(lined: Lined, by: Callable[[Rerun, Ref], object]) -> list[Narrow]:
    reference, candidate = (
        _changed(lined.reference, lined.reference_same),
        _changed(lined.candidate, frozenset(lined.same)),
    )
    one, other = [by(lined.reference, ref) for ref in reference], [by(lined.candidate, ref) for ref in candidate]
    found = []
    for start, there, count in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks():
        for at in range(count):
            ref, own = reference[start + at], candidate[there + at]
            value = next(_candidates(lined, ref, own), None)
            if value is not None:
                found.append(Narrow(ref, value, own))
    return found


def _made_so(rerun: Rerun, ref: Ref) -> object:
    return base(rerun.calls[ref.node]), rerun.shape(ref), ref.at


def _shaped_so(rerun: Rerun, ref: Ref) -> object:
    return rerun.shape(ref), rerun.kind(ref)


def _reads(rerun: Rerun, ref: Ref, other: Ref) -> bool:
    return ref != other and Around(rerun, ref.node).depends(ref, other)


def _fewest(pairs: list[Narrow], trial: Trial) -> list[Narrow]:
    """Those that are needed."""
    pairs = [_settled(trial.rerun, pair) for pair in pairs]
    for pair in list(pairs):
        rest = [other for other in pairs if other is not pair]
        if rest and _holds(trial, {other.ref: other.value for other in rest}):
            pairs = rest
    return pairs


def _settled(rerun: Rerun, narrow: Narrow) -> Narrow:
    """The same value before it was given another shape."""
    call = rerun.calls[narrow.ref.node]
    read = reads(call)
    if base(call) not in SHAPED or not read or read[0] in rerun.given or read[0].node not in rerun.calls:
        return narrow
    shape = rerun.shape(read[0])
    if int(np.prod(shape)) != narrow.value.size:
        return narrow
    return _settled(rerun, Narrow(read[0], narrow.value.reshape(shape), narrow.candidate))


def _changed(rerun: Rerun, same: frozenset[Ref]) -> list[Ref]:
    """Results of calls that the other side has not, in order; not those that only move numbers of another."""
    refs = [Ref(number, at) for number, call in rerun.calls.items() for at in range(len(call.results))]
    return [
        ref
        for ref in refs
        if ref not in same and ref not in rerun.given and rerun.kind(ref) != "c" and ref in rerun.refs
    ]


def frontier(lined: Lined) -> list[Around]:
    """The reference's calls that make the first values that differ, of values that both sides have; the last first."""
    refs = [
        ref
        for ref in _changed(lined.reference, lined.reference_same)
        if _is_first(lined.reference, ref, lined.reference_same)
    ]
    return [Around(lined.reference, number) for number in reversed(dict.fromkeys(ref.node for ref in refs))]


def changed_calls(lined: Lined) -> list[Around]:
    """The reference's calls whose results the candidate has not, the last first."""
    numbers = dict.fromkeys(ref.node for ref in _changed(lined.reference, lined.reference_same))
    return [Around(lined.reference, number) for number in reversed(numbers)]


def more_and_less(lined: Lined, narrow: Narrow) -> tuple[list[Around], list[Around]]:
    """The calls that make the candidate's value and have no like on the reference's side, and the other way round."""
    reference = _makers(lined.reference, narrow.ref, lined.reference_same)
    candidate = _makers(lined.candidate, narrow.candidate, frozenset(lined.same))
    left = [around.op for around in reference]
    more = []
    for around in candidate:
        if around.op in left:
            left.remove(around.op)
        else:
            more.append(around)
    return more, [around for around in reference if around.op in left]


def _makers(rerun: Rerun, ref: Ref, same: frozenset[Ref]) -> list[Around]:
    left, seen = [ref], dict[int, None]()
    while left:
        one = left.pop()
        if one.node in seen or (one in same and one != ref) or one in rerun.given or one.node not in rerun.calls:
            continue
        seen[one.node] = None
        left += reads(rerun.calls[one.node])
    made = (Around(rerun, number) for number in seen)
    return [around for around in made if around.op not in MOVES]


def _is_first(rerun: Rerun, ref: Ref, same: frozenset[Ref]) -> bool:
    return all(read in same or read in rerun.given or read in rerun.leaves for read in reads(rerun.calls[ref.node]))


def _candidates(lined: Lined, ref: Ref, other: Ref) -> Iterator[Array]:
    mine, candidate = lined.reference.shape(ref), lined.candidate.array(other)
    if lined.reference.kind(ref) != lined.candidate.kind(other):
        return
    if int(np.prod(mine)) == candidate.size:
        yield from shapes_of(candidate, mine)
    elif candidate.ndim == len(mine) and all(a in (b, 1) for a, b in zip(candidate.shape, mine, strict=True)):
        yield np.broadcast_to(candidate, mine)
    elif all(
        b in (a, 1) for a, b in zip(reversed(candidate.shape), reversed(mine), strict=False)
    ) and candidate.ndim >= len(mine):
        sizes = (*[None] * (candidate.ndim - len(mine)), *mine)
        spread = tuple(slice(0, 1) if size == 1 else slice(None) for size in sizes)
        least = candidate[spread]
        if least.size == int(np.prod(mine)) and np.array_equal(np.broadcast_to(least, candidate.shape), candidate):
            yield least.reshape(mine)


def _holds(trial: Trial, values: dict[Ref, Array]) -> bool:
    made = trial.run(in_place(trial.rerun, values))
    return made is not None and apart(made, trial.found) <= trial.enough


def in_place(rerun: Rerun, values: dict[Ref, Array]) -> Edit:
    """The program with these values in the place of its own."""
    edit: dict[int, Fragment] = {}
    for ref, value in values.items():
        calls = (made_by("clone.default", np.ascontiguousarray(value)),)
        count = len(rerun.calls[ref.node].results)
        results = tuple(Ref(-1) if at == ref.at else Ref(ref.node, at) for at in range(count))
        edit[ref.node] = Fragment(calls, results)
    return edit


def questions(lined: Lined, narrow: Narrow) -> Question:
    """What the candidate has in the place of one value."""
    return Question(narrow.value, lined.reference.array(narrow.ref), max(lined.near / 16, 1e-12))


def region(lined: Lined, reference: Rerun, ref: Ref) -> list[Around]:
    """The reference's calls that make a value out of those that both sides have."""
    left, seen = [ref], dict[int, None]()
    while left:
        one = left.pop()
        known = one in lined.equal and one != ref
        if one.node in seen or known or one in reference.given or one.node not in reference.calls:
            continue
        seen[one.node] = None
        left += reads(reference.calls[one.node])
    return [Around(reference, number) for number in sorted(seen, key=reference.order.index, reverse=True)]


TURNED = SHAPED | {"transpose", "permute", "t"}


def telling_call(rerun: Rerun, ref: Ref) -> int:
    """The call that computes a value, past those that only move numbers."""
    while True:
        call = rerun.calls.get(ref.node)
        read = [] if call is None else reads(call)
        if (
            call is None
            or base(call) not in TURNED
            or not read
            or read[0] in rerun.given
            or read[0].node not in rerun.calls
        ):
            return ref.node
        ref = read[0]


__all__ = [
    "Call",
    "Lined",
    "Narrow",
    "first_to_differ",
    "in_place",
    "lined_up",
    "narrowed",
    "questions",
    "region",
    "telling_call",
]
