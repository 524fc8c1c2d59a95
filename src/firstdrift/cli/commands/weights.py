"""`firstdrift weights`: look at checkpoints and carry them from one format to another."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from ..options import debug_option, json_option, print_json, progress, say, sizes

if TYPE_CHECKING:
    from ...weights.checkpoint import Checkpoint
    from ...weights.formats.hf_directory import Companions
    from ...weights.inspection import Inspected, Inspection
    from ...weights.writing import Report

SCHEMA_CONVERT = "firstdrift-weights-convert-v1"
# Subcommands that live in modules of their own, imported when they are asked for.
ELSEWHERE: dict[str, str] = {"diff": "weights_verify", "verify": "weights_verify"}


class _Weights(click.Group):
    """A group that knows its further subcommands by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in ELSEWHERE:
            found = getattr(import_module(f".{ELSEWHERE[cmd_name]}", __package__), cmd_name)
            assert isinstance(found, click.Command)
            return found
        return super().get_command(ctx, cmd_name)


@click.group("weights", cls=_Weights, short_help="Inspect, convert, verify and compare checkpoints.")
def command() -> None:
    """Checkpoints: safetensors, APR, GGUF, npz, PyTorch and Hugging Face directories."""


@command.command("inspect", short_help="Print tensors, statistics, and what looks wrong.")
@click.argument("path", metavar="PATH")
@json_option
@debug_option
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


@command.command("convert", short_help="Write a checkpoint in another format.")
@click.argument("source", metavar="A")
@click.argument("target", metavar="B")
@click.option(
    "--format",
    "format",
    help="safetensors, safetensors-sharded, apr, apr-sharded, gguf, npz, pt or hf; default by suffix.",
)
@click.option("--dtype", help="f32, f16, bf16 or f64; for APR also apr_q8, apr_q4.")
@click.option("--shard-bytes", type=click.IntRange(min=1), help="Largest shard.  [default: 5 GB]")
@click.option("--force", is_flag=True, help="Replace B.")
@json_option
@debug_option
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
    from ...errors import FormatError
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


def inspection_text(found: Inspection) -> str:
    """A summary, one line a tensor, and what is suspicious."""
    from ...core.sites import shown

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
    suspicious = [
        f"  {name}: {', '.join(tensor.suspicions)}"
        for name, tensor in zip(names, found.tensors, strict=True)
        if tensor.suspicions
    ]
    return "\n".join([*head, *rows, *([f"{len(suspicious)} suspicious tensors", *suspicious] if suspicious else [])])


def report_text(report: Report) -> str:
    """What was written, and what is not as it was."""
    from ...core.sites import shown

    rounded = [change for change in report.changes if change.changed]
    same, exact, values = (
        report.tensors - len(report.changes),
        len(report.changes) - len(rounded),
        f"{report.rounded:,}",
    )
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
    from ...core.sites import shown

    keys = [shown(key) for key in found.metadata]
    return ", ".join(keys[:12]) + (f" and {len(keys) - 12} more (--json shows them)" if len(keys) > 12 else "")
