"""What of the reference's program nothing needs any more once some calls are made as the candidate makes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...program.calls import Ref, reads
from ...program.edits import Edit
from ...program.reruns import Rerun
from ..two_programs.aligned import Graft
from .around import MOVES, base


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
