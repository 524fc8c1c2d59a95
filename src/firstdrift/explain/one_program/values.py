"""Values, lines and rows of calls of a program as a reader of the model's code knows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from ...core.sites import Site
from ...program.calls import Call, Earlier, Ref, reads
from ...program.reruns import Rerun
from ..naming import left_out_label, skipped_label
from .around import MOVES, Around, base, place_of

MOST_TOLD = 5  # calls of a row that are named
PART = "optimizer"
PARTED = frozenset({"split", "chunk", "unbind", "split_with_sizes", "topk"})
SHAPED = frozenset({"view", "_unsafe_view", "expand", "clone", "alias", "detach", "unsqueeze", "squeeze", "reshape"})
TURNED = SHAPED | {"transpose", "permute", "t"}
WRITTEN = MOVES | {"flatten", "unflatten", "contiguous", "repeat", "view_as", "expand_as", "getitem", "rearrange"}


def name_of(rerun: Rerun, ref: Ref) -> str:
    """What a value is called that no call of a program made."""
    site = rerun.given.get(ref)
    if site is None:
        leaf = rerun.leaves.get(ref)
        if leaf is not None and isinstance(leaf.source, Earlier):
            return f"{site_told(leaf.source.site)} of the step before"
        return (leaf.name if leaf is not None and leaf.name else None) or "a table"
    return site_told(site)


def site_told(site: Site) -> str:
    """A site as a reader knows it; a gradient is told from what it is the gradient of."""
    kind = {"grad": "the gradient of ", "grad_scaled": "the gradient of ", "agrad": "the gradient at "}
    return kind.get(site.phase, "") + ".".join(part for part in (site.name, site.port) if part)


def told(rerun: Rerun, ref: Ref) -> str:
    """A value as a reader knows it."""
    ref = origin(rerun, ref)
    if ref in rerun.given or ref in rerun.leaves:
        return name_of(rerun, ref)
    one = Around(rerun, ref.node)
    place = place_of(rerun, ref.node)
    part = f"part {ref.at + 1}" if len(one.call.results) > 1 and base(one.call) in PARTED else "the result"
    return f"{part} of {one.written}" + (f" of line {place.line}" if place is not None else "")


def origin(rerun: Rerun, ref: Ref) -> Ref:
    """A value before an operation gave it another shape for itself."""
    while ref.node in rerun.calls and ref not in rerun.given:
        one = Around(rerun, ref.node)
        if one.op not in SHAPED or one.written in WRITTEN or not one.tensors:
            break
        ref = one.tensors[0]
    return ref


def call_told(rerun: Rerun, number: int) -> str:
    """A call with what it is given."""
    call = rerun.written(number)
    name = (call.function if isinstance(call, Call) else call.op) or call.op.split(".")[1]
    parts = name.split(".")
    name = parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]
    return f"{name.strip('_')}({', '.join(_arguments(rerun, call))})"


def _arguments(rerun: Rerun, call: Any) -> Iterator[str]:
    for argument in call.args:
        if isinstance(argument, Ref):
            yield told(rerun, argument) if argument in rerun.refs else "a tensor"
        elif isinstance(argument, float):
            yield f"{argument:.6g}"
        elif isinstance(argument, int | str | bool) or argument is None:
            yield str(argument)
        elif isinstance(argument, tuple | list) and all(isinstance(item, int) for item in argument):
            yield str(list(argument))
        else:
            yield "..."
    for name, item in call.kwargs.items():
        if isinstance(item, int | float | str | bool):
            yield f"{name}={item}"


def line_of(rerun: Rerun, number: int) -> str | None:
    """The file and the line of a call; of one that differentiates, those of the forward call."""
    place = place_of(rerun, number)
    return None if place is None else f"{PurePath(place.file).name}:{place.line}"


def telling_call(rerun: Rerun, ref: Ref) -> int:
    """The call that computes a value, past those that only move numbers."""
    while (call := rerun.calls.get(ref.node)) is not None and base(call) in TURNED:
        read = reads(call)
        if not read or read[0] in rerun.given or read[0].node not in rerun.calls:
            break
        ref = read[0]
    return ref.node


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
    are = "is" if len(calls) == 1 else "are"
    said = f"{names(calls)} {are} left out: {around.written} reads {told(around.rerun, new)}"
    return dropped_label(calls, new), said


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
