"""Write checkpoints: tensor after tensor, into a file that appears when it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from ..core.arrays import as_array
from ..core.atomic import replacing_together
from ..core.bars import Bar, no_bar
from ..core.dtypes import ITEMSIZE, numpy_dtype
from ..core.mapped import Bytes
from ..core.sites import first_repeated, shown
from ..core.strict_json import Json
from ..errors import FormatError, storage
from .checkpoint import Array, Entry, entry_of
from .dtype_rounding import FLOATS, Rounding, as_dtype
from .formats.quantized_blocks import ENCODED, encode_blocks, quantized_bytes


@dataclass(frozen=True)
class Job:
    """What a writer is given, and the changes that it makes on the way."""

    path: Path
    format: str
    tensors: list[Tensor]
    metadata: Mapping[str, Json]
    shard_bytes: int
    advance: Callable[[int], None]
    verify: Callable[[], None]  # called when all is written, before the file appears
    types: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of metadata that came from GGUF
    changes: list[Change] = field(default_factory=list)

    def stored(self, tensors: Iterable[Tensor]) -> Iterator[tuple[Tensor, Bytes]]:
        """The tensors one at a time, each with the bytes to write: little-endian and in C order."""
        for tensor in tensors:
            data, rounding = stored_bytes(tensor)
            yield tensor, data
            self.advance(data.nbytes)
            target = tensor.entry.dtype
            if tensor.source != target or rounding.changed:
                self.changes.append(Change(tensor.name, tensor.source, target, rounding.changed, rounding.largest))


@dataclass(frozen=True)
class Change:
    """A tensor that is not stored as it was: its dtypes, how many values differ, and by how much at most."""

    name: str
    source: str
    target: str
    changed: int
    largest: float

    def __str__(self) -> str:
        how = f"{self.changed} values rounded, by at most {self.largest:.3g}" if self.changed else "exactly"
        return f"{shown(self.name)}: {self.source} to {self.target}, {how}"


def shards(tensors: list[Tensor], most: int) -> list[list[Tensor]]:
    """The tensors in runs of at most so many bytes; a tensor that is larger has a shard of its own."""
    parts: list[list[Tensor]] = [[]]
    room = most
    for tensor in tensors:
        if parts[-1] and tensor.entry.nbytes > room:
            parts.append([])
            room = most
        parts[-1].append(tensor)
        room -= tensor.entry.nbytes
    return parts


Shard = tuple[str, int, list[str]]  # its file's name and size, and the names of its tensors


def write_shards(
    job: Job, suffix: str, write_file: Callable[[Path, list[Tensor], int, int], None],
    index_of: Callable[[list[Shard]], str],
) -> None:  # fmt: skip
    """Complete files first, each given its number and their count; the index last: without it nothing was written."""
    if not job.path.name.endswith(suffix):
        raise FormatError(f"{job.path}: is where an index would be written; end its name in {suffix}")
    stem, kind = job.path.name.removesuffix(suffix), suffix.split(".")[1]
    parts = shards(job.tensors, job.shard_bytes)
    written: list[Shard] = []
    with replacing_together(job.path) as place:
        for number, part in enumerate(parts):
            name = f"{stem}-{number + 1:05d}-of-{len(parts):05d}.{kind}"
            shard = place(job.path.parent / name)
            write_file(shard, part, number, len(parts))
            written.append((name, shard.stat().st_size, [tensor.name for tensor in part]))
        place(job.path).write_bytes(index_of(written).encode())


@dataclass(frozen=True)
class Tensor:
    """One tensor to write: its name, its entry in the file, and how its numbers (or its quantized bytes) are had."""

    name: str
    entry: Entry
    load: Callable[[], tuple[Array, Rounding]]
    source: str  # the dtype it comes from


def plain_tensor(name: str, value: Any) -> Tensor:
    """A tensor from an array."""
    array = as_array(value, f"tensor {shown(name)!r}")
    entry = entry_of(name, array)
    return Tensor(name, entry, lambda: (array, Rounding()), entry.dtype)


def in_dtype(tensor: Tensor, dtype: str) -> Tensor:
    """The same tensor in another dtype, plain or quantized, converted when it is loaded.

    Vectors are not quantized: norms and biases are small and delicate.
    """
    entry, is_quantized = tensor.entry, dtype in ENCODED
    if entry.dtype == dtype or (is_quantized and len(entry.shape) < 2):
        return tensor
    nbytes = quantized_bytes(dtype, entry.size) if is_quantized else entry.size * ITEMSIZE[dtype]
    convert = encode_blocks if is_quantized else as_dtype

    def load() -> tuple[Array, Rounding]:
        array, before = tensor.load()
        converted, rounding = convert(array, dtype, f"tensor {shown(tensor.name)!r}")
        return converted, before + rounding

    return replace(tensor, entry=Entry(entry.name, dtype, entry.shape, nbytes, is_quantized), load=load)


def prepared(tensor: Tensor, writer: Writer, format: str, dtype: str | None) -> Tensor:
    """The tensor in the dtype that is asked for, of floating-point numbers; else in its own, or the next one of the
    format that holds it exactly."""
    own, asked = tensor.entry.dtype, dtype
    if format == "gguf" and len(tensor.entry.shape) < 2 and (dtype or own) in ("f16", "bf16"):
        asked = "f32"  # llama.cpp multiplies by vectors in float32 and aborts at any narrower one
    if asked is not None and own in FLOATS:
        if asked not in (*FLOATS, *ENCODED):
            raise FormatError(f"dtype {asked!r} is not one of {', '.join((*FLOATS, *ENCODED))}; choose one of these")
        tensor = in_dtype(tensor, asked)
    own = tensor.entry.dtype
    if own not in writer.DTYPES and own not in writer.WIDENED:
        raise FormatError(f"tensor {shown(tensor.name)!r}: {format} has no {own}; choose another format or --dtype")
    return tensor if own in writer.DTYPES else in_dtype(tensor, writer.WIDENED[own])


def stored_bytes(tensor: Tensor) -> tuple[Bytes, Rounding]:
    """The bytes to write, little-endian and in C order, checked against what was announced."""
    array, rounding = tensor.load()
    entry = tensor.entry
    if not entry.quantized:
        array = np.ascontiguousarray(array, numpy_dtype(entry.dtype)).reshape(entry.shape)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if flat.nbytes != entry.nbytes:
        said = f"{entry.nbytes} bytes were announced and {flat.nbytes} came"
        raise FormatError(f"tensor {shown(entry.name)!r}: {said}; it changed while it was written")
    return flat, rounding


DEFAULT_SHARD = 5 * 10**9
WRITERS = {
    "safetensors": "formats.safetensors_weights",
    "safetensors-sharded": "formats.safetensors_weights",
    "apr": "formats.apr",
    "apr-sharded": "formats.apr",
    "gguf": "formats.gguf_writer",
    "npz": "formats.npz_weights",
    "pt": "formats.torch_weights",
}
SUFFIXES = {
    ".safetensors": "safetensors",
    ".safetensors.index.json": "safetensors-sharded",
    ".apr": "apr",
    ".apr.index.json": "apr-sharded",
    ".gguf": "gguf",
    ".npz": "npz",
    ".pt": "pt",
    ".pth": "pt",
    ".bin": "pt",
}


@dataclass(frozen=True)
class Report:
    """What was written: how many tensors and bytes, which of them are not stored as they were, and what else."""

    path: Path
    format: str
    tensors: int
    nbytes: int
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def rounded(self) -> int:
        """Values that are no longer the same."""
        return sum(change.changed for change in self.changes)

    def to_json(self) -> dict[str, Json]:
        """The report as JSON's own types."""
        return {
            "path": str(self.path),
            "format": self.format,
            "tensors": self.tensors,
            "bytes": self.nbytes,
            "rounded": self.rounded,
            "changes": [vars(change) for change in self.changes],
            "notes": list(self.notes),
        }


class Writer(Protocol):
    """A format's module for writing: the dtypes it holds, those it can hold exactly in another, and the work."""

    DTYPES: Iterable[str]
    WIDENED: Mapping[str, str]

    def write(self, job: Job) -> list[str]:
        """Write the file; returns what could not be carried."""


def write_checkpoint(
    path: str | PathLike[str],
    entries: Iterable[tuple[str, Array]],
    *,
    format: str,
    metadata: Mapping[str, Json] | None = None,
    dtype: str | None = None,
    shard_bytes: int = DEFAULT_SHARD,
) -> Report:
    """Write tensors by name."""
    tensors = [plain_tensor(name, value) for name, value in entries]
    return write_tensors(path, tensors, format=format, metadata=metadata, dtype=dtype, shard_bytes=shard_bytes)


def write_tensors(
    path: str | PathLike[str],
    tensors: Iterable[Tensor],
    *,
    format: str,
    metadata: Mapping[str, Json] | None = None,
    dtype: str | None = None,
    shard_bytes: int = DEFAULT_SHARD,
    bar: Bar = no_bar,
    verify: Callable[[], None] = lambda: None,
    types: Mapping[str, tuple[int, ...]] | None = None,
) -> Report:
    """Write tensors that are loaded one at a time."""
    writer = load_writer(format, path)
    ready = [prepared(tensor, writer, format, dtype) for tensor in tensors]
    if (same := first_repeated(tensor.name for tensor in ready)) is not None:
        raise FormatError(f"tensor {shown(ready[same[0]].name)!r}: is given twice; give every tensor its own name")
    total = sum(tensor.entry.nbytes for tensor in ready)
    path = Path(path)
    with storage(path, "write the checkpoint", "choose a place that you may write, with room for it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with bar("writing", total) as advance:
            job = Job(path, format, ready, metadata or {}, shard_bytes, advance, verify, types or {})
            notes = writer.write(job)
    return Report(path, format, len(ready), total, tuple(job.changes), tuple(notes))


def load_writer(format: str, path: str | PathLike[str]) -> Writer:
    """The module that writes a format."""
    if format not in WRITERS:
        raise FormatError(f"{path}: format {format!r} cannot be written; choose one of {', '.join(WRITERS)}")
    try:
        return cast(Writer, import_module(f".{WRITERS[format]}", __package__))
    except ModuleNotFoundError as error:
        raise FormatError(f"{path}: writing {format} needs {error.name}; pip install {error.name}") from None


def format_of(path: Path) -> str | None:
    """The format that a file's name asks for."""
    return next((format for suffix, format in SUFFIXES.items() if path.name.endswith(suffix)), None)
