"""Which of the candidate's calls, written in the reference's program, are enough to give what the candidate has."""

from __future__ import annotations

from collections.abc import Sequence

from ..program.calls import Ref, reads
from ..program.edits import Edit
from ..program.reruns import Rerun
from .aligned import Aligned, Graft
from .around import MOVES, Change, base
from .grafted import described, has_other_sizes
from .trying import Trial, Tried

MOST_GRAFTS = 160  # calls made otherwise, beyond which two programs have too little in common


def smallest_graft(aligned: Aligned, trial: Trial) -> Tried | None:
    """The fewest calls made as the candidate makes them that give what was found, told as a change."""
    grafts = aligned.grafts
    if not grafts or len(grafts) > MOST_GRAFTS or not _fits(trial, grafts):
        return None
    needed = _needed_of(aligned, trial, grafts)
    change = described(aligned, needed, lost(aligned.ours, _edit(needed)))
    return None if change is None else trial.tried(change)


def _edit(grafts: Sequence[Graft]) -> Edit:
    return {one.ours: one.fragment for one in grafts}


def _fits(trial: Trial, grafts: Sequence[Graft]) -> bool:
    return trial.tried(Change("graft", "", "", _edit(grafts))) is not None


def _needed_of(aligned: Aligned, trial: Trial, grafts: list[Graft]) -> list[Graft]:
    """The grafts that are needed. Calls that have other sizes follow from what they read, and are kept or left out
    together; where all are such, those are left out that come before the first that is needed."""
    sized = [one for one in grafts if has_other_sizes(aligned, one)]
    others = [one for one in grafts if one not in sized]
    if others and _fits(trial, others):
        return _fewest(trial, others, [])
    if others:
        others = _fewest(trial, others, sized)
    while not others and len(sized) > 1 and _fits(trial, sized[1:]):
        sized = sized[1:]
    return sorted([*others, *sized], key=lambda one: aligned.place[one.ours])


def _fewest(trial: Trial, grafts: list[Graft], kept: list[Graft]) -> list[Graft]:
    """Those of which none can be left out; halves are left out before single ones, what comes last first."""
    size = max(len(grafts) // 2, 1)
    while len(grafts) > 1 - bool(kept):
        rest = _without(trial, grafts, size, kept)
        if size == 1 and len(rest) == len(grafts):
            break
        size, grafts = max(min(size, len(rest)) // 2, 1), rest
    return grafts


def _without(trial: Trial, grafts: list[Graft], size: int, kept: list[Graft]) -> list[Graft]:
    for end in range(len(grafts), 0, -size):
        rest = [*grafts[: max(end - size, 0)], *grafts[end:]]
        if (rest or kept) and _fits(trial, [*rest, *kept]):
            grafts = rest
    return grafts


def lost(rerun: Rerun, edit: Edit) -> list[int]:
    """The reference's calls that nothing needs any more with some calls changed; not those that only move numbers."""
    before, now = _needed(rerun, {}), _needed(rerun, edit)
    return [number for number in rerun.calls if number in before - now and base(rerun.calls[number]) not in MOVES]


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
