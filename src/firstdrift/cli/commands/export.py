"""`firstdrift export`: write a trace, or a part of it, in another format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...core.sites import shown
from ...errors import SelectionError, TraceExistsError
from ..options import Command, order_option, print_json, progress, say, selecting_options, sites, sizes

if TYPE_CHECKING:
    from ...core.strict_json import Json
    from ...core.traces import Trace

SUFFIXES = {".npz": "npz", ".safetensors": "safetensors"}
SCHEMA = "firstdrift-export-v1"


@click.command("export", cls=Command, short_help="Write a trace in another format.")
@click.argument("trace", metavar="TRACE")
@click.argument("out", metavar="OUT")
@click.option("--format", help="trace, aprt, npy, npz or safetensors; default by suffix.")
@click.option("--force", is_flag=True, help="Replace OUT.")
@click.option("--inputs-of", metavar="NAME", help="Only the inputs, weights and outputs of one module.")
@selecting_options
@order_option
def command(
    trace: str, out: str, format: str | None, force: bool, inputs_of: str | None, only: tuple[str, ...],
    phase: tuple[str, ...], order: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write TRACE to OUT in another format.

    What that format cannot hold is refused or reported.

    \b
    firstdrift export run/ run.npz
    firstdrift export run/ dump/ --format npy --phase 'grad*'
    firstdrift export run/ q_proj.npz --inputs-of layers.3.attn.q_proj
    """
    if inputs_of is not None and (only or phase):
        raise click.UsageError("--inputs-of says itself what is written; drop --only and --phase")
    from ...compare.open_trace import load_format, open_trace
    from ...store.reader import verify as compare_checksums

    target = Path(out)
    name = format or SUFFIXES.get(target.suffix)
    if name is None:
        raise SelectionError(
            f"{out}: its name does not tell the format; add --format trace, aprt, npy, npz or safetensors"
        )
    opened = open_trace(trace, order=order)
    source, place = (Path(os.path.realpath(path)) for path in (opened.path, target))
    if place == source or place in source.parents:
        raise TraceExistsError(f"{out}: is, or holds, the trace itself; choose another path")
    if any("crc32" in record.details for record in opened):
        opened = opened.with_problems(compare_checksums(opened))
    if only or phase:
        opened = opened.select(only, phase)
    said: dict[str, Json] = {}
    if inputs_of is not None:
        opened, said = _one_module(opened, inputs_of, name)
    with progress(f"exporting to {name}", opened.nbytes) as advance:
        changed = load_format(name).write(opened, target, overwrite=force, advance=advance)
    notes = [*(f"the source is not complete: {problem}" for problem in opened.problems), *opened.notes, *changed]
    if as_json:
        about = {"path": out, "format": name, "sites": len(opened), "bytes": opened.nbytes, "notes": notes}
        print_json({"schema": SCHEMA, **about, **said})
    else:
        lines = [f"{out}: {name}, {sites(len(opened))}, {sizes(opened.nbytes)}"]
        lines += [f"  {role}: {', '.join(map(shown, keys))}" for role, keys in said.items()]
        say("\n".join([*lines, *(f"  {shown(note)}" for note in notes)]))
    if not opened.complete:
        click.get_current_context().exit(2)


def _one_module(opened: Trace, module: str, format: str) -> tuple[Trace, dict[str, Json]]:
    """A module's own part of a trace, and by what its inputs, weights and outputs are called there."""
    from ...store.formats.excerpt import inputs_of, roles
    from ...store.formats.site_keys import keys_of

    part = inputs_of(opened, module)
    flat = keys_of(record.site for record in part) if format in SUFFIXES.values() else {}
    return part, {role: [flat.get(site, str(site)) for site in found] for role, found in roles(part).items()}
