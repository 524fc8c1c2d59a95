"""What it is called if calls of the reference are made as the candidate makes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ...core.traces import Array
from ...program.calls import Ref, reads
from ...program.edits import Edit, local
from ...program.reruns import Rerun
from ..changes.constants import SHAPES, settings_apart
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
from ..one_program.values import call_told, origin, told
from .aligned import Aligned, Graft, edit_of, is_idle, lost
from .lined import SAME

CALLS = "calls"  # what the kind of a change of calls begins with that only one side makes
MOST_TOLD = 4  # calls that a sentence names, of either side
MOST_PLACES = 3  # calls that are made otherwise, each in its own way
A_CALL, A_PLACE, A_TENSOR, A_WIDTH = 3.0, 2.0, 4.0, 5.0  # bits


def described(aligned: Aligned, grafts: Sequence[Graft]) -> Change | None:
    """Calls made otherwise as one change; None where it takes too much to say it."""
    edit = edit_of(grafts)
    reference, candidate = frequencies(aligned.reference), frequencies(aligned.candidate)
    if reference and candidate and reference != candidate:  # whatever else follows from that
        label = table_of_angles(Around(aligned.reference, grafts[0].reference), "rope-partial")
        said = f"{candidate} frequencies instead of {reference}"
        parameters = {"frequencies": candidate, "reference_frequencies": reference}
        at, there = grafts[0].reference, grafts[0].candidate
        return Change("frequencies", label, said, edit, A_WIDTH, 0, parameters, at, there)
    without = lost(aligned.reference, edit)
    whole = _described(aligned, grafts, without)
    if whole is not None and whole.label == "op-order":  # what one of them leaves out is what another makes
        return whole
    return _one_by_one(aligned, grafts, without) or whole


def _one_by_one(aligned: Aligned, grafts: Sequence[Graft], without: Sequence[int]) -> Change | None:
    """Several changes that have nothing to do with each other: what is lost is lost to one of them."""
    if len(grafts) == 1 or all(has_other_sizes(aligned, graft) for graft in grafts[1:]):
        return None
    alone = [lost(aligned.reference, edit_of([graft])) for graft in grafts]
    if {number for some in alone for number in some} != set(without):
        return None
    each = [_described(aligned, [one], some) for one, some in zip(grafts, alone, strict=True)]
    some = [change for change in each if change is not None]
    kinds = {(change.kind, change.label) for change in some}
    few = len(kinds) == 1 or len(some) <= MOST_PLACES
    return _joined(some, edit_of(grafts)) if len(some) == len(each) and few else None


def _described(aligned: Aligned, grafts: Sequence[Graft], lost: Sequence[int]) -> Change | None:
    edit = edit_of(grafts)
    made = list(dict.fromkeys(number for graft in grafts for number in _extra(aligned, graft)))
    ops = {base(aligned.candidate.calls[number]) for number in made}  # what the candidate calls with another number
    lost = [one for one in lost if base(aligned.reference.calls[one]) in ops or not is_idle(aligned.reference, one)]
    gone = [*lost, *(graft.reference for graft in grafts if _is_another(aligned, graft))]
    apart = _Apart(aligned, grafts, made, gone)
    if made or apart.leaves_out:
        return apart.change(edit)
    follow = [graft for graft in grafts[1:] if has_other_sizes(aligned, graft)]
    each = [_call_apart(aligned, graft) for graft in grafts if graft not in follow]
    if len({(change.kind, change.label) for change in each}) > 1 and len(each) > MOST_PLACES:
        return None
    return _joined(each, edit)


def has_other_sizes(aligned: Aligned, graft: Graft) -> bool:
    """Whether a call only follows in the sizes of what it reads."""
    around = Around(aligned.reference, graft.reference)
    if not graft.fragment.calls or around.op not in SHAPES or _tensors_apart(around, graft):
        return False
    return base(graft.fragment.calls[-1]) == around.op


def _joined(some: Sequence[Change], edit: Edit) -> Change:
    """Several changes as one: alike, or told one after the other."""
    first, rest = some[0], some[1:]
    alike = all((change.kind, change.label) == (first.kind, first.label) for change in rest)
    more = f" (as in {len(rest)} more call{'s' * (len(rest) > 1)})" if rest else ""
    said = first.said + more if alike else "; ".join(change.said for change in some)
    named = next((change.label for change in some if change.label != CHANGED), CHANGED)
    bits = A_PLACE * len(rest) + (first.bits if alike else sum(change.bits for change in some))
    return Change(first.kind, named, said, edit, bits, 0, first.parameters, first.at, first.candidate)


def _extra(aligned: Aligned, graft: Graft) -> list[int]:
    """The candidate's calls that a graft makes and the reference does not, but those that only move numbers."""
    calls = aligned.candidate.calls
    extra = [number for number in graft.written[:-1] if not is_idle(aligned.candidate, number)]
    if not graft.written:
        return extra
    op = base(calls[graft.written[-1]])
    alike = op == base(aligned.reference.calls[graft.reference]) and not graft.keeps
    return extra if op in MOVES or alike else [*extra, graft.written[-1]]


def _is_another(aligned: Aligned, graft: Graft) -> bool:
    """Whether a call of the reference is of another operation than what stands in its place."""
    op = base(aligned.reference.calls[graft.reference])
    is_same = bool(graft.written) and op == base(aligned.candidate.calls[graft.written[-1]])
    return op not in MOVES and not graft.keeps and not is_same


def _call_apart(aligned: Aligned, graft: Graft) -> Change:
    """One call that both make, given another number or another tensor."""
    around, candidate = Around(aligned.reference, graft.reference), Around(aligned.candidate, graft.candidate)
    change = _settings_needed(aligned, graft) if around.op == candidate.op else None
    if change is None:
        label, said = _read_otherwise(aligned, graft)
        change = Change(f"read by {around.written}", label, said, {}, A_TENSOR + len(graft.written), parameters={})
    return replace(change, edit=edit_of([graft]), free=0, undone="", at=graft.reference, candidate=graft.candidate)


def _settings_needed(aligned: Aligned, graft: Graft) -> Change | None:
    """The settings of a call that are others and matter: one that does alone, else all that do something, first those
    that are no padding, which only keeps the size. None where none differs."""
    rerun, target = aligned.reference, aligned.reference.target
    around, candidate = Around(rerun, graft.reference), Around(aligned.candidate, graft.candidate)
    found = list(settings_apart(around, candidate))
    if len(found) < 2:
        return next(iter(found), None)
    whole, alone = rerun.run(edit_of([graft]), target), [rerun.run(change.edit, target) for change in found]
    enough = next((change for change, made in zip(found, alone, strict=True) if _same(made, whole)), None)
    if enough is not None:
        return enough
    some = [change for change, made in zip(found, alone, strict=True) if not _same(made, rerun.array(target))] or found
    some.sort(key=lambda change: change.label == "padding")
    parameters = {key: value for change in some for key, value in (change.parameters or {}).items()}
    said = " and ".join(change.said for change in some)
    return replace(some[0], said=said, parameters=parameters, bits=some[0].bits + len(some) - 1)


def _same(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return False
    return bool(np.allclose(one, other, rtol=SAME, atol=SAME * float(np.abs(other).max(initial=0.0)), equal_nan=True))


def _read_otherwise(aligned: Aligned, graft: Graft) -> tuple[str, str]:
    """The label and the sentence of a call that reads other tensors."""
    around = Around(aligned.reference, graft.reference)
    pairs = _tensors_apart(around, graft)
    if len(pairs) == 2 and pairs[0] == pairs[1][::-1]:
        both = " and ".join(told(around.rerun, ref) for ref in pairs[0])
        return swapped_label(around, *pairs[0]), f"{around.written} reads {both} in each other's place"
    if len(pairs) == 1 and pairs[0][1].node >= 0:
        old, new = pairs[0]
        said = f"{around.written} reads {told(around.rerun, new)} instead of {told(around.rerun, old)}"
        return source_label(around, origin(around.rerun, old), origin(around.rerun, new)), said
    if len(pairs) == 1 and len(graft.written) == 1 and not graft.keeps:
        mine, other = pairs[0][0], _their_own(aligned, graft, around.tensors.index(pairs[0][0]))
        label = "residual-source" if around.op in ("add", "sub") and not around.of_scores else CHANGED
        if other is not None:
            now, before = told(aligned.candidate, other), told(around.rerun, mine)
            return label, f"{around.written} reads {now} instead of {before}"
    now, before = call_told(aligned.candidate, graft.candidate), call_told(aligned.reference, graft.reference)
    return CHANGED, f"{now} instead of {before}"


def _their_own(aligned: Aligned, graft: Graft, place: int) -> Ref | None:
    """What the candidate's call reads at a place, where both read as many tensors."""
    refs = reads(aligned.candidate.calls[graft.candidate])
    return refs[place] if len(refs) == len(reads(aligned.reference.calls[graft.reference])) else None


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
        reference, candidate = aligned.reference, aligned.candidate
        pairs = [pair for graft in grafts for pair in _tensors_apart(Around(reference, graft.reference), graft)]
        self.instead = {new for _, new in pairs if new.node >= 0}  # the reference's values that are read instead
        common = self.instead | (_outside(reference, lost) & self._as_reference(_outside(candidate, made)))
        if not made:
            self.made, self.lost = list[int](), _one_term(reference, _stem(reference, lost, common), common)
        else:
            there = self._as_candidate(common or {old for old, _ in pairs})
            self.made = _stem(candidate, made, there) or _outermost(candidate, made)
            self.lost = _stem(reference, lost, common) or _outermost(reference, lost)
            if not self.is_reordered:
                self.made = self._read_there(_one_term(candidate, self.made, there))

    def _read_there(self, made: list[int]) -> list[int]:
        """A call of which other numbers are handed on than those that are read: the call that these come from."""
        candidate, twins = self.aligned.candidate, self.aligned.lined.twins
        read = [ref for graft in self.grafts for ref in reads(candidate.calls[graft.candidate]) if ref not in twins]
        sources = {_source(candidate, ref) for ref in read}
        source = sources.pop() if len(sources) == 1 else None
        moved = source is not None and source.node in candidate.calls and base(candidate.calls[source.node]) in MOVES
        return [source.node] if source is not None and moved and len(made) == 1 else made

    @property
    def is_reordered(self) -> bool:
        """Whether both sides make the same calls of other tensors."""
        reference, candidate = self.aligned.reference, self.aligned.candidate
        return bool(self.made) and _with_numbers(candidate, self.made) == _with_numbers(reference, self.lost)

    @property
    def leaves_out(self) -> bool:
        """Whether what is read instead is what the calls that are not made began with."""
        return bool(self.lost)

    def _as_reference(self, refs: Iterable[Ref]) -> set[Ref]:
        return {own for ref in refs if (own := self.aligned.counterpart(ref)) is not None}

    def _as_candidate(self, refs: set[Ref]) -> set[Ref]:
        return {ref for ref in self.aligned.candidate.refs if self.aligned.counterpart(ref) in refs}

    def change(self, edit: Edit) -> Change | None:
        """The change; None where it takes too much to say it."""
        made, lost = _as_written(self.aligned.candidate, self.made), _as_written(self.aligned.reference, self.lost)
        if len(made) > MOST_TOLD or len(lost) > MOST_TOLD:
            return None
        label, said = self._named(made, lost)
        at, candidate = (lost or [self.grafts[0].reference])[-1], (made or [self.grafts[0].candidate])[-1]
        numbers = self._numbers_apart()
        if numbers and not made:
            label, said = CHANGED, "; ".join([said, *(number.said for number in numbers)])
        bits = A_CALL * max(self.count, len(made) + len(lost)) + A_PLACE * (len(edit) - 1 + len(numbers))
        parameters = {"reference_calls": [base(self.aligned.reference.calls[number]) for number in lost],
                      "calls": [base(self.aligned.candidate.calls[number]) for number in made]}  # fmt: skip
        kind = " ".join((CALLS, *parameters["reference_calls"], "to", *parameters["calls"]))
        return Change(kind, label, said, edit, bits, 0, parameters, at, candidate)

    def _numbers_apart(self) -> list[Change]:
        """Other numbers of calls that both make."""
        found: list[Change] = []
        for graft in self.grafts:
            mine, other = (
                Around(self.aligned.reference, graft.reference),
                Around(self.aligned.candidate, graft.candidate),
            )
            found += settings_apart(mine, other) if mine.op == other.op and mine.op not in SHAPES else ()
        return found

    def _named(self, made: Sequence[int], lost: Sequence[int]) -> tuple[str, str]:
        reference, candidate = self.aligned.reference, self.aligned.candidate
        new = " and ".join(call_told(candidate, number) for number in made)
        old = " and ".join(call_told(reference, number) for number in lost)
        if not lost:
            around = Around(reference, self.grafts[0].reference)
            label = additional_label(base(candidate.calls[made[0]]), around) if len(self.made) == 1 else CHANGED
            return label, f"the candidate computes {new}, which the reference does not"
        if not made:
            return self._left_out(), f"{old} {'is' if len(lost) == 1 else 'are'} left out"
        said = f"{new} instead of {old}"
        if self.is_reordered:
            return "op-order", said
        alone = len(made) == len(lost) == 1
        said += _value_told(candidate.array(Ref(made[0])), reference.array(Ref(lost[0]))) if alone else ""
        if alone and base(candidate.calls[made[0]]) == base(reference.calls[lost[0]]):
            for change in settings_apart(Around(reference, lost[0]), Around(candidate, made[0])):
                return change.label, change.said
        return instead_label(Around(reference, lost[0]), base(candidate.calls[made[0]])) if alone else CHANGED, said

    def _left_out(self) -> str:
        """What it is called if the reference's calls are not made."""
        reference, kept = self.aligned.reference, self.instead
        for number in reversed(self.lost):
            around = Around(reference, number)
            on_the_way = {Ref(one) for one in self.lost} | kept
            gone = [ref for ref in around.tensors if not _leads(reference, on_the_way, ref)]
            if around.op in ("add", "sub") and len(around.tensors) == 2 and len(gone) == 1:
                other = next(ref for ref in around.tensors if ref != gone[0])
                return left_out_label(around, around.tensors.index(gone[0]), gone[0], other)
        written = _as_written(reference, self.lost)
        return skipped_label(Around(reference, self.lost[0])) if len(written) == 1 else CHANGED


def _source(rerun: Rerun, ref: Ref) -> Ref:
    """Where numbers come from, past calls that only move them: of several joined, the one that has them."""
    numbers = rerun.array(ref)
    while (call := rerun.calls.get(ref.node)) is not None and base(call) in MOVES and ref not in rerun.given:
        have = [one for one in reads(call) if np.isin(numbers, rerun.array(one)).all()]
        if not have or have[0] in rerun.given or have[0].node not in rerun.calls:
            break
        ref = have[0]
    return ref


def _value_told(one: Array, other: Array) -> str:
    """Two single numbers, the candidate's and the reference's; nothing of more."""
    if one.size != 1 or other.size != 1 or one.dtype.kind != "f":
        return ""
    return f" ({float(one.item()):.6g} instead of {float(other.item()):.6g})"


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
    return [
        number for number in numbers if not _stem(rerun, [other for other in numbers if other != number], {Ref(number)})
    ]


def _as_written(rerun: Rerun, numbers: Sequence[int]) -> list[int]:
    """One call for each that the model's code has."""
    return list({id(rerun.written(number)): number for number in numbers}.values())


def _with_numbers(rerun: Rerun, numbers: Sequence[int]) -> Counter[str]:
    calls = [rerun.calls[number] for number in numbers]
    return Counter(f"{base(call)} {[one for one in call.args if isinstance(one, int | float)]}" for call in calls)
