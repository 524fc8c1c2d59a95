"""One module's part of a trace: what it was fed, its weights, and what it should make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from ...core.records import Record
from ...core.sites import Site
from ...core.strict_json import Json
from ...core.traces import Array, Trace
from ...errors import SelectionError

ELSEWHERE = ("from", "order", "crc32", "aliases")  # what a line says of other lines


def inputs_of(trace: Trace, module: str) -> Trace:
    """The inputs, weights and outputs of one module, as a trace of its own.

    Where a trace holds outputs only, the inputs are the outputs that it was computed from, under the names `in.0` ...
    """
    weights = list(_weights(trace, module))
    own = [
        line for line in trace.lines if line.site.phase == "fwd" and line.site.name == module and line.at is not None
    ]
    inputs = [one for one in own if one.site.port.startswith("in.")]
    outputs = [one for one in own if one not in inputs]
    if not outputs:
        raise SelectionError(f"{trace.path}: no output of {module!r} is recorded; `firstdrift show` lists what is")
    named = [(one, one.site) for one in inputs] or list(_read_before(trace, outputs))
    if not named:
        raise SelectionError(f"{trace.path}: what {module!r} reads was not recorded; record the inputs of modules, too")
    special: dict[Site, Callable[[], Array]] = {}
    lines = []
    for record, site in [*weights, *named, *((output, output.site) for output in outputs)]:
        lines.append(record._replace(site=site, details=_told(record, site)))
        special[site] = partial(trace.array, record)
    header = {key: item for key, item in trace.header.items() if key not in ("problems", "notes", "probes")}
    return Trace(
        trace.path, trace.format, lines, lambda number: trace.path, header=header, problems=trace.problems,
        notes=trace.notes, special=special,
    )  # fmt: skip


def roles(trace: Trace) -> dict[str, list[Site]]:
    """What each tensor of such a part is for: inputs, weights, expected outputs."""
    found: dict[str, list[Site]] = {"inputs": [], "weights": [], "outputs": []}
    for record in trace:
        is_input = record.site.port.startswith("in.")
        found["weights" if record.site.phase == "weight" else "inputs" if is_input else "outputs"].append(record.site)
    return found


def _weights(trace: Trace, module: str) -> Iterator[tuple[Record, Site]]:
    """Parameters and buffers of a module and of everything in it, tied ones by the name that they have there."""
    for record in trace.lines:
        if record.site.phase == "weight" and record.at is not None:
            others = (alias.rpartition(".") for alias in record.aliases)
            sites = [record.site, *(record.site._replace(name=name, port=port) for name, _, port in others)]
            inside = (site for site in sites if not module or f"{site.name}.".startswith(f"{module}."))
            yield from ((record, site) for site in list(inside)[:1])


def _read_before(trace: Trace, outputs: list[Record]) -> Iterator[tuple[Record, Site]]:
    """The outputs that a module was computed from, as its inputs: what the trace says, or the tensor before it."""
    for output in outputs:
        read = output.producers if output.producers is not None else _before(trace, output.site)
        there = [trace[site] for site in read if site in trace and trace[site].at is not None]
        data = [record for record in there if record.site.phase in ("fwd", "input")]
        for number, record in enumerate(data):
            yield record, output.site._replace(port=f"in.{number}")


def _before(trace: Trace, site: Site) -> list[Site]:
    """In a chain, the output before one, or what the model was fed."""
    last: list[Site] = []
    for record in trace:
        other = record.site
        if other == site:
            break
        if other.step == site.step and other.sample in (site.sample, None) and record.at is not None:
            if other.phase == "fwd" and not other.port.startswith("in."):
                last = [other]
            elif other.phase == "input" and not any(one.phase == "fwd" for one in last):
                last.append(other)
    return last


def _told(record: Record, site: Site) -> Mapping[str, Json]:
    """What a line says of its tensor alone."""
    said = {key: item for key, item in record.details.items() if key not in ELSEWHERE}
    return said if site == record.site else {"note": f"recorded as {record.site}"}
