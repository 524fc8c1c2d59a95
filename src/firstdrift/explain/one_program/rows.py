"""Calls in a row that make one value of a program out of another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from ...program.calls import Ref, reads
from ...program.reruns import Rerun
from ..naming import left_out_label, skipped_label
from .around import MOVES, Around
from .values import told

MOST_TOLD = 5  # calls of a row that are named
PART = "optimizer"


def between(rerun: Rerun, last: Ref, first: Ref) -> list[Around]:
    """The calls that make one value out of another, in order, without those that only move numbers."""
    made: set[Ref] = {first}
    behind = [number for number in rerun.calls if number != first.node]
    for number in behind:
        call = rerun.calls[number]
        if any(ref in made for ref in reads(call)):
            made |= {Ref(number, at) for at in range(len(call.results))} - rerun.given.keys()
    if last not in made:
        return []
    needed = {last}
    for number in reversed(behind):
        if any(ref.node == number for ref in needed & made):
            needed |= set(reads(rerun.calls[number])) & made
    numbers = {ref.node for ref in needed} - {first.node}
    found = [Around(rerun, number) for number in behind if number in numbers]
    return [around for around in found if around.op not in MOVES]


def left_out(around: Around, old: Ref, new: Ref) -> tuple[str, str] | None:
    """What it is called, and how it is told, if a call reads what its argument was computed from."""
    calls = between(around.rerun, old, new)
    is_stream = around.op == "add" and around.call.part != PART
    if not calls or (is_stream and any(around.depends(ref, new) for ref in around.tensors if ref != old)):
        return None  # a sum with what it was computed from: a residual, which may be taken elsewhere
    verb = "is" if len(calls) == 1 else "are"
    return dropped_label(
        calls, new
    ), f"{names(calls)} {verb} left out: {around.written} reads {told(around.rerun, new)}"


def dropped_label(calls: Sequence[Around], remains: Ref) -> str:
    """What it is called if calls are left out behind a value: a sum with something else lacks a term."""
    terms = [(call, at, ref) for call in calls if call.op in ("add", "sub") and len(call.tensors) == 2
             for at, ref in enumerate(call.tensors) if not call.depends(ref, remains)]  # fmt: skip
    if terms:
        one, at, ref = terms[-1]
        return left_out_label(one, at, ref, one.tensors[1 - at])
    return skipped_label(calls[0]) if len(calls) == 1 else "skipped-op"


def names(calls: Sequence[Around]) -> str:
    """Calls as a reader knows them, with their lines."""
    written = list(dict.fromkeys(call.within for call in calls))
    some = written[:MOST_TOLD]
    said = f"{', '.join(some[:-1])} and {some[-1]}" if len(some) > 1 else some[0]
    said += " and others" if len(written) > MOST_TOLD else ""
    return f"{said} ({lines(calls)})"


def lines(calls: Sequence[Around]) -> str:
    """The lines of calls, of the first file that there is."""
    places = [place for call in calls if (place := call.rerun.place(call.number)) is not None]
    if not places:
        return "no line"
    here = sorted({place.line for place in places if place.file == places[0].file})
    name = PurePath(places[0].file).name
    return f"{name}:{here[0]}" if len(here) == 1 else f"{name}:{here[0]} to {here[-1]}"
