"""Causal order: the order in which a run computes its sites, whatever order they were written in.

`order` on a line states its place in the forward pass. Without it the forward lines give the sequence, and a
module that has none stands behind the one written before it. Backward phases run through the same sequence
in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence

from .records import Record
from .sites import BACKWARD_PHASES, PHASE_RANK, PHASES

Place = tuple[str, int, bool]  # a module's name and call, and whether it is entered (`in.*`) or left there
_LINE_ORDERED = frozenset({"input", "loss", "lossgrad"})  # outside the sequence of modules
_EVIDENCE = sorted(PHASES, key=lambda phase: (phase != "fwd", phase != "weight"))  # of forward order, best first


def causal_order(lines: Sequence[Record]) -> list[Record]:
    """The records, earliest cause first; those that nothing tells apart stay in line order."""
    position = _positions(lines)
    first_call: dict[str, int] = {}
    for (name, _, entered), rank in position.items():
        if not entered:
            first_call.setdefault(name, rank)

    def key(record: Record) -> tuple[int, int, int, int]:
        step, phase, name, port, call, sample = record.site
        if phase in _LINE_ORDERED:
            rank = 0  # sorting is stable, so that these stay as they were written
        elif phase == "fwd" or phase == "agrad":
            rank = position[_place(phase, name, port, call)]
        else:  # a parameter's gradient is complete once the backward of its module's first call is
            rank = first_call[name]
        if phase in BACKWARD_PHASES:
            rank = -rank
        return step, PHASE_RANK[phase], rank, -1 if sample is None else sample

    return sorted(lines, key=key)


def stating_order(lines: Sequence[Record]) -> list[Record]:
    """The records, each with its forward position stated, so that any part of them keeps the order."""
    position = _positions(lines)

    def stated(record: Record) -> Record:
        _, phase, name, port, call, _ = record.site
        return record._replace(details={**record.details, "order": position[_place(phase, name, port, call)]})

    return [stated(record) for record in lines]


def forward_names(lines: Sequence[Record]) -> list[str]:
    """The names of all modules in forward order: by where they return, or are entered if that is all we know."""
    positions = _positions(lines)
    returning = {name for name, _, entered in positions if not entered}
    return list(dict.fromkeys(name for name, _, entered in positions if not entered or name not in returning))


def _place(phase: str, name: str, port: str, call: int) -> Place:
    # A container is entered before its children run and has its own place where it returns.
    return name, call, phase == "fwd" and port.startswith("in.")


def _positions(lines: Sequence[Record]) -> dict[Place, int]:
    """Every place and its rank in the forward pass: a linked list that grows by inserting behind a neighbour."""
    stated: dict[Place, int] = {}
    written: dict[str, dict[Place, None]] = {phase: {} for phase in _EVIDENCE}  # by phase, in line order
    for record in lines:
        _, phase, name, port, call, _ = record.site
        place = _place(phase, name, port, call)
        written[phase][place] = None
        if "order" in record.details:
            stated.setdefault(place, record.details["order"])
    following: dict[Place | None, Place | None] = {None: None}
    groups = (
        ("stated", sorted(stated, key=stated.__getitem__)),
        *((phase, list(places)) for phase, places in written.items()),
    )
    for phase, places in groups:
        previous: Place | None = None
        # Activation gradients alone are written as they flow; everything else as the layers stand.
        for place in reversed(places) if phase == "agrad" else places:
            if place not in following:
                following[place], following[previous] = following[previous], place
            previous = place
    positions: dict[Place, int] = {}
    place_or_end = following[None]
    while place_or_end is not None:
        positions[place_or_end] = len(positions)
        place_or_end = following[place_or_end]
    return positions
