"""`firstdrift weights`: look at checkpoints, carry them from one format to another, and compare them."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...core.dtypes import ITEMSIZE
from ...core.sites import shown
from ...errors import FormatError, SelectionError, WeightsError
from ..factories import FORM, load_function
from ..options import Command, new_map, print_json, progress, say, sizes, write_map_file

if TYPE_CHECKING:
    from ...weights.checkpoint import Checkpoint
    from ...weights.formats.hf_directory import Companions
    from ...weights.inspection import Inspected, Inspection
    from ...weights.loading.map_lines import CheckpointDifference, TensorDifference
    from ...weights.loading.proof import Loaded
    from ...weights.writing import Report

SCHEMA_CONVERT = "firstdrift-weights-convert-v1"
DOES_NOT_FIT = 1
SHOWN = 100  # lines of a difference


@click.group("weights", short_help="Inspect, convert, verify and compare checkpoints.")
def command() -> None:
    """Checkpoints: safetensors, APR, GGUF, npz, PyTorch and Hugging Face directories."""


@command.command("inspect", cls=Command, short_help="Print tensors, statistics, and what looks wrong.")
@click.argument("path", metavar="PATH")
def inspect(path: str, as_json: bool) -> None:
    """Print metadata, tensors, statistics and what looks wrong; exit with 1 for NaN or Inf.

    \b
    firstdrift weights inspect model.safetensors
    firstdrift weights inspect model.gguf --json
    """
    from ...weights.inspection import inspect_checkpoint

    found = inspect_checkpoint(path, progress)
    if as_json:
        print_json(found.to_json())
    else:
        say(inspection_text(found))
    click.get_current_context().exit(1 if found.broken else 0)


@command.command("convert", cls=Command, short_help="Write a checkpoint in another format.")
@click.argument("source", metavar="A")
@click.argument("target", metavar="B")
@click.option(
    "--format", help="safetensors, safetensors-sharded, apr, apr-sharded, gguf, npz, pt or hf; default by suffix.",
)  # fmt: skip
@click.option("--dtype", help="f32, f16, bf16 or f64; for APR also apr_q8, apr_q4.")
@click.option("--shard-bytes", type=click.IntRange(min=1), help="Largest shard.  [default: 5 GB]")
@click.option("--force", is_flag=True, help="Replace B.")
def convert(
    source: str, target: str, format: str | None, dtype: str | None, shard_bytes: int | None, force: bool, as_json: bool
) -> None:
    """Write the tensors of A to B, bit for bit where B's format allows it, and report what was rounded.

    \b
    firstdrift weights convert model.gguf model.safetensors
    firstdrift weights convert model.safetensors model.apr --dtype f16
    firstdrift weights convert model.gguf model/ --format hf
    """
    from ...weights.conversion import convert as convert_checkpoint
    from ...weights.writing import DEFAULT_SHARD

    report = convert_checkpoint(
        source, target, format=format, dtype=dtype, shard_bytes=shard_bytes or DEFAULT_SHARD, overwrite=force,
        bar=progress, companions=_companions,
    )  # fmt: skip
    if as_json:
        print_json({"schema": SCHEMA_CONVERT, **report.to_json()})
    else:
        say(report_text(report))


def _companions(checkpoint: Checkpoint) -> Companions:
    """The config.json and tokenizer of a Hugging Face directory, derived where the source is a file."""
    from ...weights.formats.hf_directory import FORMAT, own_companions

    if checkpoint.format == FORMAT:  # which needs no torch
        return own_companions(checkpoint)
    try:
        from ...decoder.hf_companions import companions_of
    except ModuleNotFoundError as error:
        raise FormatError(
            f"{checkpoint.path}: deriving a config.json needs {error.name}; pip install 'firstdrift[decoder]'"
        ) from None
    return companions_of(checkpoint)


@command.command("verify", cls=Command, short_help="Prove that a checkpoint fills a model.")
@click.argument("model", metavar="MODEL")
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.option("--map", "map_file", metavar="FILE", help="Map of CHECKPOINT's names and layouts to MODEL's (YAML).")
@click.option("--cast", is_flag=True, help="Round to the model's dtypes.")
def verify(model: str, checkpoint: str, map_file: str | None, cast: bool, as_json: bool) -> None:
    """Check that CHECKPOINT has every parameter and buffer of MODEL, in its shape and without NaN.

    MODEL is a Hugging Face directory, or a function that returns the model, as FILE.py:factory or pkg.module:factory.

    Exit codes: 0 everything arrives; 1 it does not fit; 2 could not tell; 3 internal error.

    \b
    firstdrift weights verify models/llama/ llama.gguf
    firstdrift weights verify mynet.model:build weights.safetensors --map names.yml --json
    """
    from ...weights.loading.destinations import destinations
    from ...weights.loading.load import opened, populate

    built = _model(model)
    size = sum(destination.tensor.nbytes for destination in destinations(built))
    try:
        with opened(checkpoint) as source, progress("verifying", size) as advance:
            loaded = populate(built, source, map_file, cast=cast, dry=True, advance=advance)
    except WeightsError as error:
        if as_json:
            print_json(_failure_json(model, checkpoint, error))
        else:
            say(str(error))
        click.get_current_context().exit(DOES_NOT_FIT)
    if as_json:
        print_json({**loaded.to_json(), "verdict": "same", "model": model})
    else:
        say(_verified(loaded, model))


@command.command("diff", cls=Command, short_help="Compare two checkpoints tensor by tensor.")
@click.argument("reference", metavar="REF")
@click.argument("candidate", metavar="CAND")
@click.option("--write-map", metavar="FILE", help="Write a map that loads REF into a model with CAND's names.")
def diff(reference: str, candidate: str, write_map: str | None, as_json: bool) -> None:
    """Compare two checkpoints; find transposed, permuted, tied, fused and exchanged tensors.

    Other dtypes are compared after rounding REF to them. A tensor found under another name is `moved`, no drift.

    Exit codes: 0 every number is there; 1 drift; 2 tensors are missing or nothing was compared; 3 internal error.

    \b
    firstdrift weights diff model.safetensors model.gguf
    firstdrift weights diff before/ after/ --json
    firstdrift weights diff original.safetensors port.safetensors --write-map names.yml
    """
    from ...weights.difference import map_of_difference

    target = new_map(write_map)
    found = compare_checkpoints(reference, candidate, as_json=as_json)
    if target is not None:
        write_map_file(target, map_of_difference(found), "map written; read it, then give it as map= or --map")
    click.get_current_context().exit(found.exit_code)


def compare_checkpoints(
    reference: str, candidate: str, *, as_json: bool, limit: int = SHOWN, quiet: bool = False
) -> CheckpointDifference:
    """Compare two checkpoints and print what was found."""
    from ...weights.difference import compare
    from ...weights.open_checkpoint import open_checkpoint

    of_reference, of_candidate = open_checkpoint(reference), open_checkpoint(candidate)
    with of_reference, of_candidate, progress("comparing", of_reference.nbytes) as advance:
        found = compare(of_reference, of_candidate, advance)
    if as_json:
        print_json(found.to_json())
    else:
        say(_verdict(found) if quiet else _text(found, limit))
    return found


def _model(place: str) -> Any:
    """The model that an argument means."""
    from ...weights.loading.destinations import from_directory, without_memory

    if Path(place).is_dir():
        return from_directory(Path(place))
    if ":" not in place:
        raise SelectionError(f"{place!r} is no model; give a Hugging Face directory, {FORM}")
    return without_memory(load_function(place), place)


def _verified(loaded: Loaded, model: str) -> str:
    size = sum(prod(arrival.shape) * ITEMSIZE[arrival.dtype] for arrival in loaded.proof)
    how = f"{loaded.rounded} values rounded to the model's dtypes" if loaded.rounded else "bit for bit"
    lines = [f"same: all {loaded.count} tensors of {model} ({sizes(size)}) arrive from {loaded.source}, {how}"]
    for what, names in (("not used", loaded.extra), ("dropped by the map", loaded.dropped)):
        lines += [f"  {what}: {', '.join(map(shown, names[:8]))}{', ...' if len(names) > 8 else ''}"] if names else []
    tied = [arrival for arrival in loaded.proof if arrival.tied]
    lines += [f"  {shown(arrival.name)} is also {', '.join(map(shown, arrival.tied))}" for arrival in tied]
    lines += [f"  note: {shown(note)}" for note in loaded.notes]
    return "\n".join(lines)


def _failure_json(model: str, checkpoint: str, error: WeightsError) -> dict[str, Any]:
    from ...weights.loading.proof import SCHEMA

    return {
        "schema": SCHEMA, "verdict": "drift", "model": model, "source": checkpoint, "error": str(error).split(":")[0],
        "problems": list(error.problems), "suggested_map": error.suggested_map,
    }  # fmt: skip


def _text(found: CheckpointDifference, limit: int) -> str:
    """What is not the same, a line each, and the verdict."""
    differing = [tensor for tensor in found.tensors if tensor.verdict != "same"]
    width = max((len(shown(difference.name)) for difference in differing[:limit]), default=0)
    lines = [_line(difference, width) for difference in differing[:limit]]
    lines += [f"... and {len(differing) - limit} more; --json has all"] if len(differing) > limit else []
    lines += [f"only in the candidate: {shown(name)}" for name in found.candidate_only[:limit]]
    return "\n".join([*lines, _verdict(found)])


def _verdict(found: CheckpointDifference) -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items()) or "no tensor"
    return f"{found.verdict}: {counts}"


def _line(difference: TensorDifference, width: int) -> str:
    label = f" [{difference.label}]" if difference.label else ""
    return f"{difference.verdict:<8} {shown(difference.name):<{width}}  {shown(difference.sentence)}{label}".rstrip()


def inspection_text(found: Inspection) -> str:
    """A summary, one line a tensor, and what is suspicious."""
    parameters = sum(tensor.entry.size for tensor in found.tensors)
    nbytes = sum(tensor.entry.nbytes for tensor in found.tensors)
    head = [
        f"{found.path}: {found.format}, {len(found.tensors)} tensors, {parameters:,} parameters, {sizes(nbytes)}",
        *(f"  {key} {shown(str(value))}" for key, value in found.architecture.items()),
        *([f"  metadata: {_keys(found)}"] if found.metadata else []),
        *([f"  tokenizer: {', '.join(map(shown, found.tokenizer))}"] if found.tokenizer else []),
        *(f"  tied: {shown(name)} is {shown(stored)}" for name, stored in found.aliases.items()),
        *(f"  note: {shown(note)}" for note in found.notes),
    ]
    names = [shown(tensor.entry.name) for tensor in found.tensors]
    width = max(map(len, names), default=0)
    rows = [f"  {name:<{width}}  {_row(tensor)}" for name, tensor in zip(names, found.tensors, strict=True)]
    doubtful = [tensor for tensor in found.tensors if tensor.suspicions]
    suspicious = [f"  {shown(tensor.entry.name)}: {', '.join(tensor.suspicions)}" for tensor in doubtful]
    return "\n".join([*head, *rows, *([f"{len(suspicious)} suspicious tensors", *suspicious] if suspicious else [])])


def report_text(report: Report) -> str:
    """What was written, and what is not as it was."""
    rounded = [change for change in report.changes if change.changed]
    same, exact = report.tensors - len(report.changes), len(report.changes) - len(rounded)
    values = f"{report.rounded:,}"
    return "\n".join(
        [
            f"{report.path}: {report.format}, {report.tensors} tensors, {sizes(report.nbytes)}",
            f"  {same} tensors bit for bit, {exact} exactly in another dtype, {len(rounded)} rounded ({values} values)",
            *(f"  {shown(str(change))}" for change in rounded[:10]),
            *([f"  and {len(rounded) - 10} more; --json lists them"] if len(rounded) > 10 else []),
            *(f"  note: {shown(note)}" for note in report.notes),
        ]
    )


def _row(tensor: Inspected) -> str:
    entry, said = tensor.entry, tensor.statistics
    what = f"{entry.dtype}{list(entry.shape)}"
    if said["mean"] is None:
        return what
    return f"{what:<22}" + "".join(f"  {key} {said[key]:>9.3g}" for key in ("mean", "std", "min", "max"))


def _keys(found: Inspection) -> str:
    keys = [shown(key) for key in found.metadata]
    return ", ".join(keys[:12]) + (f" and {len(keys) - 12} more (--json shows them)" if len(keys) > 12 else "")
