"""Both sides' programs aligned call by call: what stands where, of what the two sides do not compute alike.

Values that both sides have hold the two programs together. Between these, calls of one operation that come in one order
are each other's counterparts. A call of the candidate's can then be written in the reference's program: its tensors are
the reference's where it has them, and made by the candidate's own calls where it has not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...program.calls import Call, Ref, reads
from ...program.edits import Edit, Fragment, local, made_by
from ...program.reruns import Rerun
from ..one_program.around import MOVES, base
from .lined import Lined

MOST_WRITTEN = 48  # calls of the candidate's that are written in the place of one
SETTLED, SAME_NUMBERS, SAME_FUNCTION, A_MOVE = 1.0, 0.5, 0.5, 0.2  # what calls have in common, for being counterparts


@dataclass(frozen=True)
class Graft:
    """The candidate's call in the place of its counterpart; `written` are the calls of the candidate's that it needs
    and that the reference has not, itself last. It may work on what the counterpart makes, which it then `keeps`."""

    reference: int
    candidate: int
    fragment: Fragment
    written: tuple[int, ...]
    keeps: bool = False


@dataclass(frozen=True)
class Aligned:
    """Two programs; `counterparts` are the calls that make something else, by the candidate's the reference's."""

    lined: Lined
    counterparts: Mapping[int, int]

    @property
    def reference(self) -> Rerun:
        """The reference's program."""
        return self.lined.reference

    @property
    def candidate(self) -> Rerun:
        """The candidate's program."""
        return self.lined.candidate

    def counterpart(self, ref: Ref) -> Ref | None:
        """The reference's value in the place of one of the candidate's; None where it has none."""
        own = self.lined.twins.get(ref)
        if own is None and ref.node in self.counterparts:
            return Ref(self.counterparts[ref.node], ref.at)
        return own

    @cached_property
    def grafts(self) -> list[Graft]:
        """Every call that the candidate makes otherwise, in the reference's order."""
        found = [self._graft(reference, candidate) for candidate, reference in self.counterparts.items()]
        return sorted((graft for graft in found if graft is not None), key=lambda one: self.place[one.reference])

    @cached_property
    def place(self) -> dict[int, int]:
        """Where each of the reference's nodes comes."""
        return {number: at for at, number in enumerate(self.reference.order)}

    def _graft(self, reference: int, candidate: int) -> Graft | None:
        another = base(self.reference.calls[reference]) != base(self.candidate.calls[candidate])
        twin = self.lined.twins.get(self.candidate.target)
        if twin is not None and another and reference == self.reference.target.node:
            # what is asked about is a value that the reference has elsewhere
            return Graft(reference, candidate, Fragment((), (twin,)), ())
        writing = _Writing(self, reference)
        if not writing.call(candidate):
            return None
        mine, other = self.reference.calls[reference], writing.calls[-1]
        if len(writing.calls) == 1 and mine.op == other.op and _same(mine, other):
            return None
        fragment = Fragment(tuple(writing.calls), self._results(reference, writing))
        return Graft(reference, candidate, fragment, tuple(writing.made), writing.kept is not None)

    def _results(self, reference: int, writing: _Writing) -> tuple[Ref, ...]:
        """What stands for the results: of the tensor that is asked about, the one that the candidate asks about."""
        last, target = len(writing.calls) - 1, self.reference.target
        if reference != target.node or target.at == self.candidate.target.at:
            return ()
        count = len(self.reference.calls[reference].results)
        return tuple(
            local(last, self.candidate.target.at) if at == target.at else Ref(reference, at) for at in range(count)
        )


def _same(one: Call, other: Call) -> bool:
    return bool(_plain(one.args) == _plain(other.args)) and bool(_plain(one.kwargs) == _plain(other.kwargs))


def _plain(item: Any) -> Any:
    if isinstance(item, Ref):
        return "ref", *item
    if isinstance(item, Mapping):
        return {key: _plain(one) for key, one in item.items()}
    return [_plain(one) for one in item] if isinstance(item, tuple | list) else item


class _Writing:
    """The candidate's calls as the reference could make them, at one place of its order."""

    def __init__(self, aligned: Aligned, reference: int) -> None:
        self.aligned, self.reference = aligned, reference
        self.kept: int | None = None  # where the reference's own call is written
        self.calls: list[Call] = []
        self.made: list[int] = []
        self._known: dict[Ref, Ref] = {}
        self._written: dict[int, int] = {}

    def call(self, number: int) -> bool:
        """Write a call and what it needs; whether it is not too much."""
        if number in self._written or len(self.calls) > MOST_WRITTEN:
            return number in self._written
        call = self.aligned.candidate.calls[number]
        args, kwargs = self._item(call.args), self._item(dict(call.kwargs))
        self.calls.append(Call(call.op, args, kwargs, ()))
        self._written[number] = len(self.calls) - 1
        self.made.append(number)
        return len(self.calls) <= MOST_WRITTEN

    def _item(self, item: Any) -> Any:
        if isinstance(item, Ref):
            return self._ref(item)
        if isinstance(item, Mapping):
            return {key: self._item(one) for key, one in item.items()}
        return tuple(self._item(one) for one in item) if isinstance(item, tuple | list) else item

    def _ref(self, ref: Ref) -> Ref:
        if ref not in self._known:
            self._known[ref] = self._reference(ref) or self._made(ref)
        return self._known[ref]

    def _reference(self, ref: Ref) -> Ref | None:
        """The reference's value in the place of one of the candidate's, where it is there by now."""
        own = self.aligned.counterpart(ref)
        if own is not None and own.node == self.reference and self.aligned.lined.twins.get(ref) == own:
            return self._own(own.at)
        return own if own is not None and self._is_there(own) else None

    def _own(self, at: int) -> Ref:
        """What the reference's own call makes."""
        if self.kept is None:
            self.calls.append(self.aligned.reference.calls[self.reference])
            self.kept = len(self.calls) - 1
        return local(self.kept, at)

    def _is_there(self, ref: Ref) -> bool:
        reference, place = self.aligned.reference, self.aligned.place
        is_made = ref not in reference.given and ref.node in reference.calls
        return not is_made or place[ref.node] < place[self.reference]

    def _made(self, ref: Ref) -> Ref:
        candidate = self.aligned.candidate
        call = candidate.calls.get(ref.node)
        if ref in candidate.given or call is None or call.drawn is not None or not self.call(ref.node):
            self.calls.append(made_by("clone.default", candidate.array(ref)))
            return local(len(self.calls) - 1)
        return local(self._written[ref.node], ref.at)


def aligned(lined: Lined, *, by_ends: bool = False) -> Aligned:
    """Find the counterparts of what both sides do not compute alike; `by_ends` makes the last calls counterparts, of
    which one may be like another call of the other side."""
    reference, candidate = _apart(lined.reference, lined.equal), _apart(lined.candidate, frozenset(lined.twins))
    found = _in_one_order(lined, reference, candidate)
    mine, other = lined.reference.target.node, lined.candidate.target.node
    ends = mine in lined.reference.calls and other in lined.candidate.calls
    known = other in found and base(lined.reference.calls[mine]) != base(lined.candidate.calls[other])
    if ends and (by_ends or not known):
        found = {one: own for one, own in found.items() if own != mine and one != other} | {other: mine}
    return Aligned(lined, found)


def _apart(rerun: Rerun, same: frozenset[Ref]) -> list[int]:
    """The calls that make something that the other side has not."""
    return [
        number for number, call in rerun.calls.items()
        if any(Ref(number, at) not in same for at in range(len(call.results))) and Ref(number) not in rerun.given
    ]  # fmt: skip


def _in_one_order(lined: Lined, reference: Sequence[int], candidate: Sequence[int]) -> dict[int, int]:
    """The counterparts that have most in common and come in one order, by the candidate's call."""
    others = [_Facts.of(lined.candidate, number) for number in candidate]
    mine = (_Facts.of(lined.reference, number) for number in reference)
    likeness = [[facts.likeness(other) for other in others] for facts in mine]
    best = [[0.0] * (len(candidate) + 1) for _ in range(len(reference) + 1)]
    for i in range(len(reference) - 1, -1, -1):
        for j in range(len(candidate) - 1, -1, -1):
            both = likeness[i][j] + best[i + 1][j + 1] if likeness[i][j] else 0.0
            best[i][j] = max(best[i + 1][j], best[i][j + 1], both)
    found, i, j = dict[int, int](), 0, 0
    while i < len(reference) and j < len(candidate):
        if likeness[i][j] and best[i][j] == likeness[i][j] + best[i + 1][j + 1]:
            found[candidate[j]] = reference[i]
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


class _Facts(NamedTuple):
    """What counterparts have in common: the operation, and perhaps its numbers and the function of the model's code."""

    kind: tuple[str, int, bool]
    numbers: str
    function: str | None

    @classmethod
    def of(cls, rerun: Rerun, number: int) -> _Facts:
        """Those of one call."""
        call, place = rerun.calls[number], rerun.place(number)
        kind = base(call), len(call.results), call.drawn is not None
        return cls(kind, str(_numbers(call.args)), None if place is None else place.function)

    def likeness(self, other: _Facts) -> float:
        """How much two calls have in common; nothing where they cannot be counterparts."""
        if self.kind != other.kind:
            return 0.0
        same = self.function == other.function, self.numbers == other.numbers
        found = SETTLED + SAME_FUNCTION * same[0] + SAME_NUMBERS * same[1]
        return found * A_MOVE if self.kind[0] in MOVES else found


def _numbers(item: Any) -> Any:
    """Arguments without their tensors."""
    if isinstance(item, Ref):
        return "tensor"
    return [_numbers(one) for one in item] if isinstance(item, tuple | list) else item


def edit_of(grafts: Sequence[Graft]) -> Edit:
    """The change that some grafts are together."""
    return {graft.reference: graft.fragment for graft in grafts}


def lost(rerun: Rerun, edit: Edit) -> list[int]:
    """The reference's calls that nothing needs any more with some calls changed; not those that only move numbers."""
    before, now = _needed(rerun, {}), _needed(rerun, edit)
    return [number for number in rerun.calls if number in before - now and base(rerun.calls[number]) not in MOVES]


def is_idle(rerun: Rerun, number: int) -> bool:
    """Whether a call only moves numbers, or gives what it is given: a factor of one."""
    call = rerun.calls[number]
    if base(call) in MOVES:
        return True
    first = next(iter(reads(call)), None)
    if first is None or rerun.shape(first) != rerun.shape(Ref(number)) or rerun.kind(first) != rerun.kind(Ref(number)):
        return False
    return len(reads(call)) == 1 and np.array_equal(rerun.array(first), rerun.array(Ref(number)), equal_nan=True)


def _needed(rerun: Rerun, edit: Edit) -> set[int]:
    left, seen = [rerun.target.node], set[int]()
    while left:
        number = left.pop()
        if number in seen or number not in rerun.calls:
            continue
        seen.add(number)
        left += [ref.node for ref in _read(rerun, number, edit) if ref not in rerun.given]
    return seen


def _read(rerun: Rerun, number: int, edit: Edit) -> list[Ref]:
    fragment = edit.get(number)
    if fragment is None:
        return reads(rerun.calls[number])
    found = [ref for call in fragment.calls for ref in reads(call)]
    found += [ref for ref in fragment.results if ref.node != number]
    return [ref for ref in found if ref.node >= 0]
