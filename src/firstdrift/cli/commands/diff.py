"""`firstdrift diff`: compare two traces, APRT stage files or checkpoints; name the first drift, and say by the exit
code what was found.
"""

from __future__ import annotations

import os
import sys
from math import isfinite
from pathlib import Path
from typing import Any

import click

from ...errors import SelectionError, storage
from ..options import Command, comparing_options, new_map, print_json, progress, say, write_map_file

TRACE, STAGE, CHECKPOINT = "a trace", "an APRT stage file", "a checkpoint"


def subject_of(reference: str, candidate: str, *, values: bool) -> str:
    """What both are to be compared as; what is of two kinds, or not what `--values` compares, is refused."""
    for path in (reference, candidate):
        with storage(path, "open it", "check the path"):
            Path(path).stat()
    kinds = _kind(Path(reference)), _kind(Path(candidate))
    if kinds == (CHECKPOINT, CHECKPOINT):
        return CHECKPOINT
    if values:
        return _with_values((reference, candidate), kinds)
    if CHECKPOINT in kinds:
        from ...store.formats.safetensors_trace import recognise

        path, other = (reference, candidate) if kinds[0] is CHECKPOINT else (candidate, reference)
        if not recognise(Path(path)):
            raise SelectionError(
                f"{path}: is a checkpoint, and {other} is not; give two checkpoints, or make it one that is read "
                f"beside a trace by firstdrift weights convert {path} FILE.safetensors"
            )
    return TRACE


def _kind(path: Path) -> str:
    """What a path is; whatever is none of the others is for the reader of traces to say."""
    from ...store.formats.native_format import recognise as is_trace

    if is_trace(path):  # first, so that nothing is loaded that traces do not need
        return TRACE
    from ...aprt import is_stage_file
    from ...weights.open_checkpoint import is_checkpoint

    return STAGE if is_stage_file(path) else CHECKPOINT if is_checkpoint(path) else TRACE


def _with_values(paths: tuple[str, str], kinds: tuple[str, str]) -> str:
    if kinds == (STAGE, STAGE):
        return STAGE
    for path, kind in zip(paths, kinds, strict=True):
        if kind is TRACE:
            raise SelectionError(
                f"{path}: is no APRT stage file and no checkpoint, of which --values compares two; "
                "drop --values for traces"
            )
    said = " and ".join(f"{path} is {kind}" for path, kind in zip(paths, kinds, strict=True))
    raise SelectionError(f"{said}; give two stage files, or two checkpoints")


WITHOUT_SITES = frozenset({"reference", "candidate", "values", "limit", "quiet", "as_json"})
REF_IS = {STAGE: "--values compares two stage files", CHECKPOINT: "two checkpoints are compared as weights"}


def _finite(ctx: click.Context, parameter: click.Parameter, value: float) -> float:
    if not isfinite(value):  # no difference is above a NaN
        raise click.BadParameter(f"{value} is not a finite number.")
    return value


@click.command("diff", cls=Command, short_help="Find the first tensor where two traces differ.")
@click.argument("reference", metavar="REF")
@click.argument("candidate", metavar="CAND")
@comparing_options
@click.option("--write-map", metavar="FILE", help="Write the matches found as a map, for editing.")
@click.option("--allow-nan", multiple=True, metavar="GLOB", help="Names that may hold NaN (repeatable).")
@click.option("--truth", metavar="TRACE", help="Float64 run of the same model, as arbiter.")
@click.option("--verify", is_flag=True, help="Compare checksums first.")
@click.option("--rule", type=click.Choice(["noise", "jump"]), default="noise", show_default=True, help="Drift rule.")
@click.option(
    "--abs-floor", type=click.FloatRange(min=0), callback=_finite, default=1e-4, show_default=True,
    help="With --rule jump: smaller differences pass.",
)  # fmt: skip
@click.option("--ranked", is_flag=True, help="Sort by introduced error.")
@click.option("--limit", type=click.IntRange(min=0), metavar="K", help="Lines of the table (100) or values (10).")
@click.option("--no-cause", is_flag=True, help="Do not search for the cause.")
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
@click.option("--values", is_flag=True, help="Compare two APRT stage files (or checkpoints) value by value.")
def command(
    reference: str, candidate: str, map_file: str | None, write_map: str | None,
    ranked: bool, limit: int | None, quiet: bool, values: bool, as_json: bool, phase: tuple[str, ...], no_cause: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Compare two traces, name the first tensor where they differ, and say whether that is noise.

    Two checkpoints are compared as by `firstdrift weights diff`.

    Exit codes: 0 same, noise or flip; 1 drift; 2 could not tell; 3 internal error.

    \b
    firstdrift diff ref/ cand/
    firstdrift diff ref/ cand/ --phase 'grad*' --ranked --json
    firstdrift diff --values ref/layer-0/ffn_out.bin cand/layer-0/ffn_out.bin
    firstdrift diff model.apr port.safetensors
    """
    ctx = click.get_current_context()
    subject = subject_of(reference, candidate, values=values)
    if subject is not TRACE:
        _refuse_others(ctx, subject)
        compare = _diff_values if subject is STAGE else _diff_checkpoints
        ctx.exit(compare(reference, candidate, limit, quiet=quiet, as_json=as_json))
    if options["rule"] != "jump" and _given(ctx, "abs_floor"):
        raise click.UsageError("--abs-floor belongs to --rule jump; add that, or drop it")
    options |= {"phases": phase, "map": map_file, "explain": not no_cause}
    if (target := new_map(write_map)) is not None:
        _write_map(reference, candidate, target, options)
    from ...compare.comparison import diff

    with progress("comparing", _bytes_on_disk(reference, candidate)) as advance:
        result = diff(reference, candidate, advance=advance, **options)
    if as_json:
        print_json(result.to_json())
    else:
        from ...report import render

        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        say(render(result, ranked=ranked, quiet=quiet, limit=limit, colour=colour), colour=colour)
    ctx.exit(result.exit_code)


def _write_map(reference: str, candidate: str, target: Path, options: dict[str, Any]) -> None:
    """Export the alignment."""
    from ...compare.comparison import align_traces
    from ...pair.mapping import read_map, write_map

    aligning = ("map", "only", "phases", "ignore", "reference_reduction", "candidate_reduction", "batch", "order")
    mapping = None if options["map"] is None else read_map(Path(options["map"]))
    asked = {key: options[key] for key in aligning} | {"map": mapping}
    alignment = align_traces(reference, candidate, **asked).alignment
    said = f"map of {len(alignment.pairs)} pairs written; edit it and pass it by --map"
    write_map_file(target, write_map(alignment, mapping), said)


def _diff_values(reference: str, candidate: str, limit: int | None, *, quiet: bool, as_json: bool) -> int:
    from ...judge.stage_values import DEFAULT_LIMIT, diff_stage_files

    found = diff_stage_files(reference, candidate, limit=DEFAULT_LIMIT if limit is None else limit)
    if as_json:
        print_json(found.to_json())
    else:
        from ...report.stage_text import render_values

        say(render_values(found, quiet=quiet))
    return found.exit_code


def _diff_checkpoints(reference: str, candidate: str, limit: int | None, *, quiet: bool, as_json: bool) -> int:
    from .weights import SHOWN, compare_checkpoints

    most = SHOWN if limit is None else limit
    return compare_checkpoints(reference, candidate, as_json=as_json, limit=most, quiet=quiet).exit_code


def _refuse_others(ctx: click.Context, subject: str) -> None:
    """An option that is about the sites of traces must not seem to work on files that have none."""
    for parameter in ctx.command.params:
        if parameter.name not in WITHOUT_SITES and parameter.name is not None and _given(ctx, parameter.name):
            raise click.UsageError(f"{REF_IS[subject]}, and {parameter.opts[0]} is for traces; drop it")


def _given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _bytes_on_disk(*paths: str) -> int:
    """How much there is to read, for the bar; nothing is counted when nobody will see one."""
    if not sys.stderr.isatty():
        return 0
    files = (file for path in paths for file in ([Path(path)] if Path(path).is_file() else Path(path).rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file())
