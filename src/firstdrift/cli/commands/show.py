"""`firstdrift show`: list a trace, or look at one of its tensors."""

from __future__ import annotations

from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...core.sites import shown
from ...errors import SelectionError
from ..options import Command, order_option, print_json, progress, say, selecting_options, sites, sizes

if TYPE_CHECKING:
    from ...core.records import Record
    from ...core.strict_json import Json
    from ...core.traces import Trace

SCHEMA = "firstdrift-show-v1"
HEADER_SHOWN = ("producer", "model", "batch", "seed", "optimizer", "gradient_of")


@click.command("show", cls=Command, short_help="List a trace, or show one tensor.")
@click.argument("trace", metavar="TRACE")
@click.argument("name", required=False)
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1), help="Values printed of a tensor.")
@click.option("--program", is_flag=True, help="Show the calls that made the tensors of NAME.")
@click.option("--verify", is_flag=True, help="Compare all checksums.")
@selecting_options
@order_option
@click.option("--format", help="Format, if a directory fits two.")
def command(
    trace: str, name: str | None, limit: int, program: bool, verify: bool, only: tuple[str, ...],
    phase: tuple[str, ...], order: str | None, format: str | None, as_json: bool,
) -> None:  # fmt: skip
    """List the sites of TRACE in causal order, or show the tensors of NAME (or a glob).

    For the directory of a training run, print its summary.

    \b
    firstdrift show run/
    firstdrift show run/ layers.3.attn --phase fwd
    firstdrift show run/ layers.3.attn:out --program
    """
    if Path(trace, "run.json").is_file() and not Path(trace, "trace.json").exists():
        from ...pretrain.showing import run_json, run_text

        if as_json:
            print_json(run_json(Path(trace)))
        else:
            say(run_text(Path(trace)))
        return
    from ...compare.open_trace import open_trace

    opened = open_trace(trace, format=format, order=order)
    if verify:
        from ...store.reader import verify as compare_checksums

        with progress("verifying", opened.nbytes) as advance:
            opened = opened.with_problems(compare_checksums(opened, advance))
    chosen = opened.matching(only, phase)
    if name is not None:
        chosen = _named(opened, chosen, name)
    if program:
        _show_program(opened, chosen if name is not None else [], as_json)
    elif as_json:
        listed = [record.to_json() if name is None else _tensor_json(opened, record, limit) for record in chosen]
        print_json(_trace_json(opened) | {"sites": listed})
    elif name is None:
        say(listing(opened, chosen))
    else:
        say("\n".join(tensor_text(opened, record, limit) for record in chosen))
    if not opened.complete:
        click.get_current_context().exit(2)


def _show_program(trace: Trace, records: list[Record], as_json: bool) -> None:
    """How the tensors of some sites were made."""
    from ...program.written.read_program import read_program
    from ...report.program_text import program_json, program_text

    if not records:
        raise SelectionError(f"{trace.path}: --program shows how one tensor was made; name it, as in `show TRACE NAME`")
    found = read_program(trace)
    if found is None:
        raise SelectionError(f"{trace.path}: has no program; record it with fd.trace, and not with program=False")
    made = [(record.site, found.find(record.site)) for record in records]
    if as_json:
        sites = [
            {"site": list(site), "program": None if one is None else program_json(one[0], site, one[1])}
            for site, one in made
        ]
        print_json(_trace_json(trace) | {"sites": sites, "program_problems": list(found.problems)})
        return
    unknown = "the program does not say how it was made"
    say("\n\n".join(f"{site}: {unknown}" if one is None else program_text(one[0], site, one[1]) for site, one in made))
    for note in dict.fromkeys(note for _, one in made if one is not None for note in one[0].notes):
        say(f"note: {shown(note)}")
    for problem in found.problems:
        say(f"problem: {shown(problem)}", err=True)


def listing(trace: Trace, records: list[Record]) -> str:
    """A summary, then one line a site; plain strings, because a row must cost a microsecond."""
    places = [_place(record) for record in records]
    width = max(map(len, places), default=0)
    rows = [
        f"{record.site.step:>5} {record.site.phase:<12} {place:<{width}}  {_what(record)}"
        for record, place in zip(records, places, strict=True)
    ]
    return "\n".join([*_summary(trace), f" step phase        {'site':<{width}}  tensor", *rows])


def tensor_text(trace: Trace, record: Record, limit: int) -> str:
    """One site in full: what the trace says of it, its statistics, its values."""
    import numpy as np

    from ...kernels import stats

    said = [f"  {shown(key)}: {shown(str(i))}" for key, i in record.details.items() if key not in ("stats", "absent")]
    lines = [f"{record.site}: {_what(record)}", *said]
    if record.stats is not None:
        lines.append("  recorded statistics: " + "  ".join(f"{key} {item}" for key, item in record.stats.items()))
    if record.at is None:
        return "\n".join(lines)
    array = trace.array(record)
    numbers = asdict(stats(array))
    lines.append("  " + "  ".join(f"{key} {_number(item)}" for key, item in numbers.items()))
    values = np.array2string(array, threshold=limit, edgeitems=max(1, min(3, limit // 2)), max_line_width=78)
    trace.check_unchanged()
    return "\n".join([*lines, *(f"  {line}" for line in values.split("\n"))])


def _named(trace: Trace, records: list[Record], name: str) -> list[Record]:
    """The records of a name, of a `name:port`, or of a glob."""

    found = [r for r in records if name in (r.site.name, _place(r))]
    found = found or [r for r in records if fnmatchcase(r.site.name, name)]
    if not found:
        near = [r.site.name for r in trace.records if name.lower() in r.site.name.lower()]
        hint = f"near it: {', '.join(dict.fromkeys(near[:3]))}" if near else "list it without a name to see them"
        raise SelectionError(f"{trace.path}: nothing is named {name!r}; {hint}")
    return found


def _summary(trace: Trace) -> list[str]:
    state = "complete" if trace.complete else "NOT COMPLETE"
    said = [
        f"{key} {shown(str(trace.header[key]))}" for key in HEADER_SHOWN if trace.header.get(key) not in (None, {}, "")
    ]
    if trace.header.get("ranks", 1) != 1:
        said.append(f"rank {trace.header.get('rank', 0)} of {trace.header['ranks']}")
    return [
        f"{trace.path}: {trace.format}, {sites(len(trace))}, {sizes(trace.nbytes)}, {state}",
        *([f"  {', '.join(said)}"] if said else []),
        *(f"  problem: {shown(problem)}" for problem in trace.problems),
        *(f"  note: {shown(note)}" for note in trace.notes),
    ]


def _place(record: Record) -> str:
    _, _, name, port, call, sample = record.site
    numbers = (f" call {call}" if call else "") + ("" if sample is None else f" sample {sample}")
    return f"{shown(name)}:{shown(port)}{numbers}"


def _what(record: Record) -> str:
    if record.absent is not None:
        return f"absent: {shown(record.absent)}"
    text = f"{record.dtype}{list(record.shape or ())}"
    return text if record.at is not None else f"{text} statistics only"


def _number(value: Json) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _trace_json(trace: Trace) -> dict[str, Json]:
    return {
        "schema": SCHEMA, "path": str(trace.path), "format": trace.format, "complete": trace.complete,
        "problems": list(trace.problems), "notes": list(trace.notes), "header": dict(trace.header),
    }  # fmt: skip


def _tensor_json(trace: Trace, record: Record, limit: int) -> dict[str, Json]:
    from ...kernels import stats

    said = record.to_json()
    if record.at is None:
        return said
    array = trace.array(record)
    first = array.reshape(-1)[:limit] if array.flags.c_contiguous else array.flatten()[:limit]
    values = [[v.real, v.imag] for v in first.tolist()] if first.dtype.kind == "c" else first.tolist()
    measured = asdict(stats(array))
    trace.check_unchanged()
    return said | {"measured": measured, "values": values}
