"""What a checkpoint holds: every tensor's numbers summed up, and what looks as if it had never been trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from os import PathLike

from .._kernels import stats
from ..bars import Bar, no_bar
from ..strict_json import Json
from .about import described
from .checkpoint import Array, Checkpoint, Entry, in_natural_order
from .hf_directory import FORMAT as HF
from .hf_directory import tokenizer_files
from .initial import initial_distribution
from .opening import open_checkpoint

SCHEMA = "firstdrift-weights-inspect-v1"


@dataclass(frozen=True)
class Inspected:
    """One tensor: its entry, its statistics, and what is suspicious about it."""

    entry: Entry
    statistics: dict[str, Json]
    suspicions: tuple[str, ...]

    @property
    def broken(self) -> bool:
        """Whether it holds NaN or Inf, which no trained weight is."""
        return bool(self.statistics["nan_count"] or self.statistics["inf_count"])

    def to_json(self) -> dict[str, Json]:
        """The tensor as JSON's own types."""
        return {**asdict(self.entry), "statistics": self.statistics, "suspicions": list(self.suspicions)}


@dataclass(frozen=True)
class Inspection:
    """A checkpoint, looked at in full."""

    path: str
    format: str
    metadata: dict[str, Json]
    architecture: dict[str, Json]
    tensors: tuple[Inspected, ...]
    aliases: dict[str, str]
    notes: tuple[str, ...]
    tokenizer: tuple[str, ...]

    @property
    def broken(self) -> list[Inspected]:
        """The tensors with NaN or Inf."""
        return [tensor for tensor in self.tensors if tensor.broken]

    def to_json(self) -> dict[str, Json]:
        """The inspection as JSON's own types."""
        return {
            "schema": SCHEMA,
            "path": self.path,
            "format": self.format,
            "parameters": sum(tensor.entry.size for tensor in self.tensors),
            "bytes": sum(tensor.entry.nbytes for tensor in self.tensors),
            "architecture": self.architecture,
            "metadata": self.metadata,
            "aliases": self.aliases,
            "tokenizer": list(self.tokenizer),
            "notes": list(self.notes),
            "tensors": [tensor.to_json() for tensor in self.tensors],
        }


def inspect_checkpoint(path: str | PathLike[str], bar: Bar = no_bar) -> Inspection:
    """Read every number of a checkpoint once."""
    with open_checkpoint(path) as checkpoint, bar("reading", checkpoint.nbytes) as advance:
        tensors = []
        for entry in map(checkpoint.entry, in_natural_order(checkpoint.entries)):
            tensors.append(inspect_tensor(entry, checkpoint.array(entry.name)))
            advance(entry.nbytes)
        checkpoint.check_unchanged()
        return Inspection(
            str(checkpoint.path), checkpoint.format, dict(checkpoint.metadata), described(checkpoint), tuple(tensors),
            dict(checkpoint.aliases), checkpoint.notes, _tokenizer(checkpoint),
        )  # fmt: skip


def inspect_tensor(entry: Entry, array: Array) -> Inspected:
    """The statistics of one tensor, and what is suspicious about them."""
    found = stats(array)
    suspicions = []
    if found.nan_count or found.inf_count:
        suspicions.append(f"{found.nan_count} NaN, {found.inf_count} Inf")
    elif found.count and found.min == found.max:
        suspicions.append("all zero" if not found.min else f"constant {found.min:g}" if found.count > 1 else "")
    elif found.count and (name := initial_distribution(array, found)):
        suspicions.append(f"looks initial: {name}")
    return Inspected(entry, asdict(found), tuple(filter(None, suspicions)))


def _tokenizer(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Where the tokenizer is: files of a directory, or keys of the metadata."""
    if checkpoint.format == HF:
        return tuple(tokenizer_files(checkpoint.path))
    return tuple(
        key
        for key in checkpoint.metadata
        if key.startswith("tokenizer.") and key.endswith((".tokens", ".vocabulary", ".merges"))
    )
