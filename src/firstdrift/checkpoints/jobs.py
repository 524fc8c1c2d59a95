"""What a writer is given, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..sites import shown
from ..strict_json import Json
from .rounding import Rounding
from .tensors import Tensor


@dataclass(frozen=True)
class Job:
    """What a writer is given."""

    path: Path
    format: str
    tensors: list[Tensor]
    metadata: Mapping[str, Json]
    shard_bytes: int
    advance: Callable[[int], None]
    verify: Callable[[], None]  # called when all is written, before the file appears
    types: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of metadata that came from GGUF


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


def change(tensor: Tensor, rounding: Rounding) -> list[Change]:
    """What to report of a tensor that was written."""
    if tensor.source == tensor.entry.dtype and not rounding.changed:
        return []
    return [Change(tensor.name, tensor.source, tensor.entry.dtype, rounding.changed, rounding.largest)]
