"""What it is called if calls of the reference are made as the candidate makes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from ...program.calls import Ref, reads
from ...program.edits import Edit, local
from ...program.reruns import Rerun
from ..changes.constants import SHAPES
from ..naming import (
    CHANGED,
    additional_label,
    frequencies,
    instead_label,
    left_out_label,
    skipped_label,
    source_label,
    swapped_label,
    table_of_angles,
)
from ..one_program.around import MOVES, Around, Change, base
from ..one_program.needing import edit_of, is_idle, lost
from ..one_program.values import call_told, origin, told
from .aligned import Aligned, Graft
from .differing import settings_apart

CALLS = "calls"  # what the kind of a change of calls begins with that only one side makes
MOST_TOLD = 4  # calls that a sentence names, of either side
MOST_PLACES = 3  # calls that are made otherwise, each in its own way
A_CALL, A_PLACE, A_TENSOR, A_WIDTH = 3.0, 2.0, 4.0, 5.0  # bits


def described(aligned: Aligned, grafts: Sequence[Graft]) -> Change | None:
    """Calls made otherwise as one change; None where it takes too much to say it."""
    edit = edit_of(grafts)
    ours, theirs = frequencies(aligned.ours), frequencies(aligned.theirs)
    if ours and theirs and ours != theirs:  # whatever else follows from that
        label = table_of_angles(Around(aligned.ours, grafts[0].ours), "rope-partial")
        said = f"{theirs} frequencies instead of {ours}"
        parameters = {"frequencies": theirs, "reference_frequencies": ours}
        return Change("frequencies", label, said, edit, A_WIDTH, 0, parameters, grafts[0].ours, grafts[0].theirs)
    without = lost(aligned.ours, edit)
    whole = _described(aligned, grafts, without)
    if whole is not None and whole.label == "op-order":  # what one of them leaves out is what another makes
        return whole
    return _one_by_one(aligned, grafts, without) or whole


def _one_by_one(aligned: Aligned, grafts: Sequence[Graft], without: Sequence[int]) -> Change | None:
    """Several changes that have nothing to do with each other: what is lost is lost to one of them."""
    if len(grafts) == 1 or all(has_other_sizes(aligned, one) for one in grafts[1:]):
        return None
    alone = [lost(aligned.ours, edit_of([one])) for one in grafts]
    if {number for some in alone for number in some} != set(without):
        return None
    each = [_described(aligned, [one], some) for one, some in zip(grafts, alone, strict=True)]
    some = [one for one in each if one is not None]
    kinds = {(one.kind, one.label) for one in some}
    few = len(kinds) == 1 or len(some) <= MOST_PLACES
    return _joined(some, edit_of(grafts)) if len(some) == len(each) and few else None


def _described(aligned: Aligned, grafts: Sequence[Graft], lost: Sequence[int]) -> Change | None:
    edit = edit_of(grafts)
    made = list(dict.fromkeys(number for one in grafts for number in _extra(aligned, one)))
    ops = {base(aligned.theirs.calls[number]) for number in made}  # what the candidate calls with another number
    lost = [one for one in lost if base(aligned.ours.calls[one]) in ops or not is_idle(aligned.ours, one)]
    gone = [*lost, *(one.ours for one in grafts if _is_another(aligned, one))]
    apart = _Apart(aligned, grafts, made, gone)
    if made or apart.leaves_out:
        return apart.change(edit)
    follow = [one for one in grafts[1:] if has_other_sizes(aligned, one)]
    each = [_call_apart(aligned, one) for one in grafts if one not in follow]
    if len({(one.kind, one.label) for one in each}) > 1 and len(each) > MOST_PLACES:
        return None
    return _joined(each, edit)


def has_other_sizes(aligned: Aligned, graft: Graft) -> bool:
    """Whether a call only follows in the sizes of what it reads."""
    around = Around(aligned.ours, graft.ours)
    if not graft.fragment.calls or around.op not in SHAPES or _tensors_apart(around, graft):
        return False
    return base(graft.fragment.calls[-1]) == around.op


def _joined(some: Sequence[Change], edit: Edit) -> Change:
    """Several changes as one: alike, or told one after the other."""
    first, rest = some[0], some[1:]
    alike = all((one.kind, one.label) == (first.kind, first.label) for one in rest)
    more = f" (as in {len(rest)} more call{'s' * (len(rest) > 1)})" if rest else ""
    said = first.said + more if alike else "; ".join(one.said for one in some)
    named = next((one.label for one in some if one.label != CHANGED), CHANGED)
    bits = A_PLACE * len(rest) + (first.bits if alike else sum(one.bits for one in some))
    return Change(first.kind, named, said, edit, bits, 0, first.parameters, first.at, first.theirs)


def _extra(aligned: Aligned, graft: Graft) -> list[int]:
    """The candidate's calls that a graft makes and the reference does not, but those that only move numbers."""
    calls = aligned.theirs.calls
    extra = [number for number in graft.written[:-1] if not is_idle(aligned.theirs, number)]
    if not graft.written:
        return extra
    op = base(calls[graft.written[-1]])
    alike = op == base(aligned.ours.calls[graft.ours]) and not graft.keeps
    return extra if op in MOVES or alike else [*extra, graft.written[-1]]


def _is_another(aligned: Aligned, graft: Graft) -> bool:
    """Whether a call of the reference is of another operation than what stands in its place."""
    op = base(aligned.ours.calls[graft.ours])
    return (
        op not in MOVES
        and not graft.keeps
        and not (graft.written and op == base(aligned.theirs.calls[graft.written[-1]]))
    )


def _call_apart(aligned: Aligned, graft: Graft) -> Change:
    """One call that both make, given another number or another tensor."""
    around, theirs = Around(aligned.ours, graft.ours), Around(aligned.theirs, graft.theirs)
    edit, at = {graft.ours: graft.fragment}, (graft.ours, graft.theirs)
    if around.op == theirs.op:
        for change in settings_apart(around, theirs):
            return Change(change.kind, change.label, change.said, edit, change.bits, 0, change.parameters, *at)
    label, said = _read_otherwise(aligned, graft)
    return Change(f"read by {around.written}", label, said, edit, A_TENSOR + len(graft.written), 0, {}, *at)


def _read_otherwise(aligned: Aligned, graft: Graft) -> tuple[str, str]:
    """The label and the sentence of a call that reads other tensors."""
    around = Around(aligned.ours, graft.ours)
    pairs = _tensors_apart(around, graft)
    if len(pairs) == 2 and pairs[0] == pairs[1][::-1]:
        both = " and ".join(told(around.rerun, one) for one in pairs[0])
        return swapped_label(around, *pairs[0]), f"{around.written} reads {both} in each other's place"
    if len(pairs) == 1 and pairs[0][1].node >= 0:
        old, new = pairs[0]
        said = f"{around.written} reads {told(around.rerun, new)} instead of {told(around.rerun, old)}"
        return source_label(around, origin(around.rerun, old), origin(around.rerun, new)), said
    if len(pairs) == 1 and len(graft.written) == 1 and not graft.keeps:
        mine, other = pairs[0][0], _their_own(aligned, graft, around.tensors.index(pairs[0][0]))
        label = "residual-source" if around.op in ("add", "sub") and not around.of_scores else CHANGED
        if other is not None:
            return label, f"{around.written} reads {told(aligned.theirs, other)} instead of {told(around.rerun, mine)}"
    now, before = call_told(aligned.theirs, graft.theirs), call_told(aligned.ours, graft.ours)
    return CHANGED, f"{now} instead of {before}"


def _their_own(aligned: Aligned, graft: Graft, place: int) -> Ref | None:
    """What the candidate's call reads at a place, where both read as many tensors."""
    refs = reads(aligned.theirs.calls[graft.theirs])
    return refs[place] if len(refs) == len(reads(aligned.ours.calls[graft.ours])) else None


def _tensors_apart(around: Around, graft: Graft) -> list[tuple[Ref, Ref]]:
    """What a call reads, and what it reads in its place."""
    if graft.keeps:
        return [(around.result, local(0))]
    if not graft.fragment.calls:
        return [(around.result, graft.fragment.results[0])]
    now = reads(graft.fragment.calls[-1])
    pairs = [(old, new) for old, new in zip(around.tensors, now, strict=False) if old != new]
    return [(old, new) for old, new in pairs if new.node < 0 or not _is_same(around.rerun, old, new)]


def _is_same(rerun: Rerun, old: Ref, new: Ref) -> bool:
    return rerun.shape(old) == rerun.shape(new) and np.array_equal(rerun.array(old), rerun.array(new), equal_nan=True)


class _Apart:
    """Calls that only one side makes. Of these the ones are told that lie on the way from what both have; what else
    they need is part of them."""

    def __init__(self, aligned: Aligned, grafts: Sequence[Graft], made: Sequence[int], lost: Sequence[int]) -> None:
        self.aligned, self.grafts = aligned, grafts
        self.count = len(made) + len(lost)  # whatever of them is told
        ours, theirs = aligned.ours, aligned.theirs
        common = self._read_instead() | (_outside(ours, lost) & self._as_ours(_outside(theirs, made)))
        if not made:
            self.made, self.lost = list[int](), _one_term(ours, _stem(ours, lost, common), common)
        else:
            begun = common or {pair[0] for one in grafts for pair in _tensors_apart(Around(ours, one.ours), one)}
            there = self._as_theirs(begun)
            self.made = _stem(theirs, made, there) or _outermost(theirs, made)
            self.lost = _stem(ours, lost, common) or _outermost(ours, lost)
            if not self.is_reordered:
                self.made = _one_term(theirs, self.made, there)

    @property
    def is_reordered(self) -> bool:
        """Whether both sides make the same calls of other tensors."""
        ours, theirs = self.aligned.ours, self.aligned.theirs
        return bool(self.made) and _with_numbers(theirs, self.made) == _with_numbers(ours, self.lost)

    @property
    def leaves_out(self) -> bool:
        """Whether what is read instead is what the calls that are not made began with."""
        return bool(self.lost)

    def _read_instead(self) -> set[Ref]:
        pairs = [pair for one in self.grafts for pair in _tensors_apart(Around(self.aligned.ours, one.ours), one)]
        return {new for _, new in pairs if new.node >= 0}

    def _as_ours(self, refs: Iterable[Ref]) -> set[Ref]:
        return {own for ref in refs if (own := self.aligned.reference(ref)) is not None}

    def _as_theirs(self, refs: set[Ref]) -> set[Ref]:
        return {ref for ref in self.aligned.theirs.refs if self.aligned.reference(ref) in refs}

    def change(self, edit: Edit) -> Change | None:
        """The change; None where it takes too much to say it."""
        made, lost = _as_written(self.aligned.theirs, self.made), _as_written(self.aligned.ours, self.lost)
        if len(made) > MOST_TOLD or len(lost) > MOST_TOLD:
            return None
        label, said = self._named(made, lost)
        at, theirs = (lost or [self.grafts[0].ours])[-1], (made or [self.grafts[0].theirs])[-1]
        numbers = self._numbers_apart()
        if numbers and not made:
            label, said = CHANGED, "; ".join([said, *(one.said for one in numbers)])
        bits = A_CALL * max(self.count, len(made) + len(lost)) + A_PLACE * (len(edit) - 1 + len(numbers))
        parameters = {"reference_calls": [base(self.aligned.ours.calls[one]) for one in lost],
                      "calls": [base(self.aligned.theirs.calls[one]) for one in made]}  # fmt: skip
        kind = " ".join((CALLS, *parameters["reference_calls"], "to", *parameters["calls"]))
        return Change(kind, label, said, edit, bits, 0, parameters, at, theirs)

    def _numbers_apart(self) -> list[Change]:
        """Other numbers of calls that both make."""
        calls = self.aligned.ours.calls, self.aligned.theirs.calls
        alike = [one for one in self.grafts if base(calls[0][one.ours]) == base(calls[1][one.theirs]) not in SHAPES]
        both = ((Around(self.aligned.ours, one.ours), Around(self.aligned.theirs, one.theirs)) for one in alike)
        return [change for ours, theirs in both for change in settings_apart(ours, theirs)]

    def _named(self, made: Sequence[int], lost: Sequence[int]) -> tuple[str, str]:
        ours, theirs = self.aligned.ours, self.aligned.theirs
        new = " and ".join(call_told(theirs, one) for one in made)
        old = " and ".join(call_told(ours, one) for one in lost)
        if not lost:
            around = Around(ours, self.grafts[0].ours)
            label = additional_label(base(theirs.calls[made[0]]), around) if len(self.made) == 1 else CHANGED
            return label, f"the candidate computes {new}, which the reference does not"
        if not made:
            return self._left_out(), f"{old} {'is' if len(lost) == 1 else 'are'} left out"
        said = f"{new} instead of {old}"
        if self.is_reordered:
            return "op-order", said
        alone = len(made) == len(lost) == 1
        if alone and base(theirs.calls[made[0]]) == base(ours.calls[lost[0]]):
            for change in settings_apart(Around(ours, lost[0]), Around(theirs, made[0])):
                return change.label, change.said
        return instead_label(Around(ours, lost[0]), base(theirs.calls[made[0]])) if alone else CHANGED, said

    def _left_out(self) -> str:
        """What it is called if the reference's calls are not made."""
        ours, kept = self.aligned.ours, self._read_instead()
        for number in reversed(self.lost):
            around = Around(ours, number)
            on_the_way = {Ref(one) for one in self.lost} | kept
            gone = [ref for ref in around.tensors if not _leads(ours, on_the_way, ref)]
            if around.op in ("add", "sub") and len(around.tensors) == 2 and len(gone) == 1:
                other = next(ref for ref in around.tensors if ref != gone[0])
                return left_out_label(around, around.tensors.index(gone[0]), gone[0], other)
        written = _as_written(ours, self.lost)
        return skipped_label(Around(ours, self.lost[0])) if len(written) == 1 else CHANGED


def _leads(rerun: Rerun, starts: set[Ref], ref: Ref) -> bool:
    """Whether a value is one of some, past calls that only move numbers."""
    while ref not in starts:
        call = rerun.calls.get(ref.node)
        if call is None or base(call) not in MOVES or not reads(call):
            return False
        ref = reads(call)[0]
    return True


def _outside(rerun: Rerun, numbers: Sequence[int]) -> set[Ref]:
    """What some calls read that none of them makes."""
    inside, left, found = set(numbers), list(numbers), set[Ref]()
    while left:
        for ref in reads(rerun.calls[left.pop()]):
            found.add(ref)
            if ref.node in rerun.calls and ref.node not in inside and base(rerun.calls[ref.node]) in MOVES:
                inside.add(ref.node)
                left.append(ref.node)
    return {ref for ref in found if ref.node not in numbers}


def _stem(rerun: Rerun, numbers: Sequence[int], starts: set[Ref]) -> list[int]:
    """Those of some calls that work on what begins with certain values."""
    reached = set[int]()
    for number, call in rerun.calls.items():
        if any(ref in starts or ref.node in reached for ref in reads(call)):
            reached.add(number)
    return [number for number in numbers if number in reached]


def _one_term(rerun: Rerun, numbers: list[int], starts: set[Ref]) -> list[int]:
    """Of a sum that only adds something to one of the values begun with, the sum alone."""
    last = numbers[-1] if numbers else None
    if last is None or base(rerun.calls[last]) not in ("add", "sub"):
        return numbers
    return [last] if any(_leads(rerun, starts, ref) for ref in reads(rerun.calls[last])) else numbers


def _outermost(rerun: Rerun, numbers: Sequence[int]) -> list[int]:
    """Those of some calls that no other of them needs."""
    return [one for one in numbers if not _stem(rerun, [other for other in numbers if other != one], {Ref(one)})]


def _as_written(rerun: Rerun, numbers: Sequence[int]) -> list[int]:
    """One call for each that the model's code has."""
    return list({id(rerun.written(number)): number for number in numbers}.values())


def _with_numbers(rerun: Rerun, numbers: Sequence[int]) -> Counter[str]:
    calls = [rerun.calls[one] for one in numbers]
    return Counter(f"{base(call)} {[one for one in call.args if isinstance(one, int | float)]}" for call in calls)
