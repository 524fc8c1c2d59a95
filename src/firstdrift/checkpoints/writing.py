"""Write checkpoints: tensor after tensor, into a file that appears when it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Protocol, cast

from ..bars import Bar, no_bar
from ..errors import FormatError, storage
from ..sites import shown
from ..strict_json import Json
from .checkpoint import Array
from .jobs import Change, Job
from .tensors import Tensor, asked_for, holdable, plain_tensor

DEFAULT_SHARD = 5 * 10**9
WRITERS = {
    "safetensors": "safetensors_writer",
    "safetensors-sharded": "safetensors_writer",
    "apr": "apr.writing",
    "apr-sharded": "apr.writing",
    "gguf": "gguf_writer",
    "npz": "npz_writer",
    "pt": "torch_writer",
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

    def write(self, job: Job) -> tuple[list[Change], list[str]]:
        """Write the file; returns what changed and what could not be carried."""


def write_checkpoint(
    path: str | PathLike[str],
    entries: Iterable[tuple[str, Array | Callable[[], Array]]],
    *,
    format: str,
    metadata: Mapping[str, Json] | None = None,
    dtype: str | None = None,
    shard_bytes: int = DEFAULT_SHARD,
) -> Report:
    """Write tensors by name. A function is called for its array twice: to learn its shape, and to write it."""
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
    asked = [asked_for(tensor, _dtype_of(tensor, format, dtype)) for tensor in tensors]
    ready = [holdable(tensor, writer.DTYPES, writer.WIDENED, format) for tensor in asked]
    _refuse_repetition(ready)
    total = sum(tensor.entry.nbytes for tensor in ready)
    path = Path(path)
    with storage(path, "write the checkpoint", "choose a place that you may write, with room for it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with bar("writing", total) as advance:
            job = Job(path, format, ready, metadata or {}, shard_bytes, advance, verify, types or {})
            changes, notes = writer.write(job)
    return Report(path, format, len(ready), total, tuple(changes), tuple(notes))


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


def _dtype_of(tensor: Tensor, format: str, dtype: str | None) -> str | None:
    """The dtype that is asked for; llama.cpp multiplies by vectors in float32 and aborts at any narrower one."""
    narrow = format == "gguf" and len(tensor.entry.shape) < 2 and (dtype or tensor.entry.dtype) in ("f16", "bf16")
    return "f32" if narrow else dtype


def _refuse_repetition(tensors: list[Tensor]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise FormatError(f"tensor {shown(tensor.name)!r}: is given twice; give every tensor its own name")
        seen.add(tensor.name)
