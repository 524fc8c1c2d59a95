"""`firstdrift export`: write a trace, or a part of it, in another format."""

from __future__ import annotations

from pathlib import Path

import click

from .options import (
    debug_option,
    json_option,
    only_option,
    order_option,
    phase_option,
    print_json,
    progress,
    sites,
    sizes,
)

SUFFIXES = {".npz": "npz", ".safetensors": "safetensors"}
SCHEMA = "firstdrift-export-v1"


@click.command("export", short_help="Write a trace in another format.")
@click.argument("trace", metavar="TRACE")
@click.argument("out", metavar="OUT")
@click.option("--format", "format", help="trace, aprt, npy, npz or safetensors; else by OUT's suffix.")
@click.option("--force", is_flag=True, help="Replace what is at OUT.")
@only_option
@phase_option
@order_option
@json_option
@debug_option
def command(
    trace: str, out: str, format: str | None, force: bool, only: tuple[str, ...], phase: tuple[str, ...],
    order: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write TRACE to OUT in another format; what OUT's format cannot hold is refused or said.

    \b
    firstdrift export run/ run.npz
    firstdrift export run/ dump/ --format npy --phase 'grad*'
    """
    from ..errors import SelectionError, TraceExistsError
    from ..opening import load_format, open_trace
    from ..store.reader import verify as compare_checksums

    target = Path(out)
    name = format or SUFFIXES.get(target.suffix)
    if name is None:
        raise SelectionError(
            f"{out}: its name does not tell the format; add --format trace, aprt, npy, npz or safetensors"
        )
    opened = open_trace(trace, order=order)
    source = opened.path.resolve()
    if target.resolve() == source or target.resolve() in source.parents:
        raise TraceExistsError(f"{out}: is, or holds, the trace itself; choose another path")
    if any("crc32" in record.details for record in opened):
        opened = opened.with_problems(compare_checksums(opened))
    if only or phase:
        opened = opened.select(only, phase)
    with progress(f"exporting to {name}", opened.nbytes) as advance:
        changed = load_format(name).write(opened, target, overwrite=force, advance=advance)
    notes = [*(f"the source is not complete: {problem}" for problem in opened.problems), *opened.notes, *changed]
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "path": out,
                "format": name,
                "sites": len(opened),
                "bytes": opened.nbytes,
                "notes": notes,
            }
        )
    else:
        click.echo(
            "\n".join([f"{out}: {name}, {sites(len(opened))}, {sizes(opened.nbytes)}", *(f"  {n}" for n in notes)])
        )
    if not opened.complete:
        click.get_current_context().exit(2)
