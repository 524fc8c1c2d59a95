"""Which of the candidate's calls, written in the reference's program, are enough to give what the candidate has."""

from __future__ import annotations

from collections.abc import Sequence

from ..one_program.around import Change
from ..one_program.trying import Trial, Tried
from .aligned import Aligned, Graft, edit_of
from .grafted import described, has_other_sizes

MOST_GRAFTS = 160  # calls made otherwise, beyond which two programs have too little in common


def smallest_graft(aligned: Aligned, trial: Trial) -> Tried | None:
    """The fewest calls made as the candidate makes them that give what was found, told as a change."""
    grafts = aligned.grafts
    if not grafts or len(grafts) > MOST_GRAFTS or not _fits(trial, grafts):
        return None
    needed = _needed_of(aligned, trial, grafts)
    change = described(aligned, needed)
    return None if change is None else trial.tried(change)


def _fits(trial: Trial, grafts: Sequence[Graft]) -> bool:
    return trial.tried(Change("graft", "", "", edit_of(grafts))) is not None


def _needed_of(aligned: Aligned, trial: Trial, grafts: list[Graft]) -> list[Graft]:
    """The grafts that are needed. Calls that have other sizes follow from what they read, and are kept or left out
    together; where all are such, those are left out that come before the first that is needed."""
    sized = [graft for graft in grafts if has_other_sizes(aligned, graft)]
    others = [graft for graft in grafts if graft not in sized]
    if others and _fits(trial, others):
        return _fewest(trial, others, [])
    if others:
        others = _fewest(trial, others, sized)
    while not others and len(sized) > 1 and _fits(trial, sized[1:]):
        sized = sized[1:]
    return sorted([*others, *sized], key=lambda one: aligned.place[one.reference])


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
