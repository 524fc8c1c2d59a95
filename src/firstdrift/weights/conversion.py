"""Convert checkpoints from one format to another: one tensor at a time, bit for bit wherever both formats allow it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import cast

from ..core.bars import Bar, no_bar
from ..core.dtypes import ITEMSIZE
from ..errors import FormatError, TraceExistsError
from .checkpoint import Array, Checkpoint, Entry
from .dtype_rounding import Rounding
from .formats.hf_directory import FORMAT as HF
from .formats.hf_directory import Companions, own_companions, weights_path, write_companions
from .formats.model_metadata import metadata_for
from .formats.quantized_blocks import GEOMETRY
from .open_checkpoint import open_checkpoint
from .writing import DEFAULT_SHARD, WRITERS, Report, Tensor, format_of, load_writer, write_tensors


def convert(
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    format: str | None = None,
    dtype: str | None = None,
    shard_bytes: int = DEFAULT_SHARD,
    overwrite: bool = False,
    bar: Bar = no_bar,
    companions: Callable[[Checkpoint], Companions] = own_companions,
) -> Report:
    """Write the tensors and metadata of `source` to `target`; the report says what is no longer the same.

    `companions` makes what a Hugging Face directory has beside its weights.
    """
    target = Path(target)
    chosen = format or format_of(target)
    if chosen is None:
        raise FormatError(f"{target}: its name does not tell the format; add --format {', '.join((*WRITERS, HF))}")
    with open_checkpoint(source) as checkpoint:
        if not checkpoint.entries:
            raise FormatError(f"{checkpoint.path}: holds no tensors; nothing to convert")
        beside = companions(checkpoint) if chosen == HF else None
        file, written = (target, chosen)
        if beside is not None:
            file, written = weights_path(target, _numbers(checkpoint, dtype), shard_bytes)
        _check_target(checkpoint, target, file, overwrite)
        held = tuple(load_writer(written, file).DTYPES)
        left = frozenset() if beside is None else beside.said
        entries = [entry for name, entry in checkpoint.entries.items() if name not in left]
        tensors = [_tensor(checkpoint, entry, held, written, dtype) for entry in entries]
        metadata, notes = metadata_for(checkpoint, written) if beside is None else ({"format": "pt"}, [*beside.notes])
        report = write_tensors(
            file, tensors, format=written, metadata=metadata, dtype=dtype, shard_bytes=shard_bytes, bar=bar,
            verify=checkpoint.check_unchanged, types=checkpoint.types,
        )  # fmt: skip
        if beside is not None:
            write_companions(beside, target, file, dtype)
        tied = [f"{name} is {stored}, and is not stored again" for name, stored in checkpoint.aliases.items()]
        notes = [*checkpoint.notes, *notes, *tied, *report.notes]
        return replace(report, path=target, format=chosen, notes=tuple(notes))


def _numbers(checkpoint: Checkpoint, dtype: str | None) -> int:
    """Bytes of all tensors as numbers, which is what safetensors holds of quantized ones."""
    sizes = (
        (entry.size, dtype or ("f32" if entry.quantized else entry.dtype)) for entry in checkpoint.entries.values()
    )
    return sum(size * ITEMSIZE.get(kind, 1) for size, kind in sizes)


def _check_target(checkpoint: Checkpoint, target: Path, file: Path, overwrite: bool) -> None:
    if target.exists() and not overwrite and not (target != file and not any(target.iterdir())):
        raise TraceExistsError(f"{target}: exists; choose another path, or overwrite (--force)")
    if any(file.exists() and opened.path.samefile(file) for opened in checkpoint.files):
        raise TraceExistsError(f"{target}: is the checkpoint that is read; choose another path")


def _tensor(checkpoint: Checkpoint, entry: Entry, held: tuple[str, ...], format: str, dtype: str | None) -> Tensor:
    """A tensor as it is, its blocks included where the other format has the same; else its numbers."""
    name, blocks = entry.name, None
    if entry.quantized and dtype is None and entry.dtype in held and _fits_rows(entry, format):
        blocks = checkpoint.blocks(name)
    if blocks is not None:
        return Tensor(name, entry, lambda: (cast(Array, checkpoint.blocks(name)), Rounding()), entry.dtype)
    kept = Entry(name, "f32", entry.shape, 4 * entry.size) if entry.quantized else entry
    return Tensor(name, kept, lambda: (checkpoint.array(name), Rounding()), entry.dtype)


def _fits_rows(entry: Entry, format: str) -> bool:
    """Whether a format can hold the blocks: GGUF has no padding, every row is a whole number of them."""
    whole = entry.dtype not in GEOMETRY or not entry.shape or entry.shape[-1] % GEOMETRY[entry.dtype][0] == 0
    return format != "gguf" or whole
