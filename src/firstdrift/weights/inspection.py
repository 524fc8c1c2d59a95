"""What a checkpoint holds: every tensor's numbers summed up, and what looks as if it had never been trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import log, prod, sqrt
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from ..core.bars import Bar, no_bar
from ..core.strict_json import Json
from ..kernels import stats
from ..kernels.results import Stats
from .checkpoint import Array, Checkpoint, Entry, in_natural_order
from .formats.hf_directory import FORMAT as HF
from .formats.hf_directory import tokenizer_files
from .formats.model_metadata import described
from .open_checkpoint import open_checkpoint

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


FEWEST = 1024  # numbers, below which chance allows nearly anything
# A uniform bound is met sharply or not at all; a spread is one number, which training passes by. Only where chance
# allows it no more than one per cent does meeting one of a few known spreads say anything.
FEWEST_NORMAL = 1 << 17
SIGMAS = 5.0
FIXED_SPREADS = (0.02, 0.01, 1.0)  # of normal initialisers that do not look at the shape
NORMAL, UNIFORM = 3.0, 1.8  # the fourth moment over the variance squared
_AT_ONCE = 1 << 20
Floats = np.ndarray[Any, np.dtype[np.float64]]


class _Moments(NamedTuple):
    """The fourth moment of standardised numbers, and the mean square of every row and column."""

    fourth: float
    rows: Floats
    columns: Floats


def initial_distribution(array: Array, found: Stats) -> str | None:
    """The initialiser that a tensor looks drawn from, or None."""
    if array.dtype.kind not in "fV" or array.size < FEWEST or array.ndim < 2 or not found.std or found.mean is None:
        return None
    if abs(found.mean) > SIGMAS * found.std / sqrt(array.size):
        return None
    moments = _moments(array.reshape(array.shape[0], -1), found.mean, found.std)
    if not _alike(moments.rows, len(moments.columns), moments.fourth):
        return None
    if not _alike(moments.columns, len(moments.rows), moments.fourth):
        return None
    fan_in, fan_out = prod(array.shape[1:]), array.shape[0] * prod(array.shape[2:])
    if array.size >= FEWEST_NORMAL and abs(moments.fourth - NORMAL) < SIGMAS * sqrt(24 / array.size):
        return _normal(found.std, fan_in, fan_out, array.size)
    if abs(moments.fourth - UNIFORM) < SIGMAS * sqrt(0.91 / array.size):
        return _uniform(max(abs(float(found.min or 0)), abs(float(found.max or 0))), fan_in, fan_out, array.size)
    return None


def _alike(squares: Floats, count: int, fourth: float) -> bool:
    """Whether the mean squares of so many numbers each vary as those of independent numbers do."""
    expected = (fourth - 1) / count
    spread = expected * sqrt(2 / len(squares) + 12 / (count * len(squares)))  # of the variance itself
    return abs(float(squares.var()) - expected) < SIGMAS * spread


def _normal(spread: float, fan_in: int, fan_out: int, size: int) -> str | None:
    known = {f"{value:g}": value for value in FIXED_SPREADS} | {
        "1/sqrt(fan_in)": 1 / sqrt(fan_in),
        "sqrt(2/fan_in)": sqrt(2 / fan_in),
        "sqrt(2/(fan_in+fan_out))": sqrt(2 / (fan_in + fan_out)),
    }
    allowed = SIGMAS / sqrt(2 * size) + 2.0**-10  # the latter for what rounding to half precision does to a spread
    return next((f"normal, std {name}" for name, value in known.items() if abs(spread / value - 1) < allowed), None)


def _uniform(bound: float, fan_in: int, fan_out: int, size: int) -> str | None:
    """The largest of many uniform numbers lies just below the bound, and never above it."""
    known = {
        "1/sqrt(fan_in)": 1 / sqrt(fan_in),
        "sqrt(6/fan_in)": sqrt(6 / fan_in),
        "sqrt(6/(fan_in+fan_out))": sqrt(6 / (fan_in + fan_out)),
    }
    lowest = -SIGMAS * log(10) / size - 2.0**-8  # chance of a wider gap below the bound: 10**-5
    return next(
        (f"uniform within {name}" for name, value in known.items() if lowest < bound / value - 1 < 2.0**-8), None
    )


def _moments(matrix: Array, mean: float, std: float) -> _Moments:
    """One pass over the numbers, a few rows at a time."""
    rows, columns = np.empty(len(matrix)), np.zeros(matrix.shape[1])
    fourth = 0.0
    step = max(1, _AT_ONCE // matrix.shape[1])
    for start in range(0, len(matrix), step):
        part = matrix[start : start + step].astype(np.float32)
        part -= np.float32(mean)
        part *= np.float32(1 / std)
        np.square(part, out=part)
        rows[start : start + step] = part.mean(axis=1)
        columns += part.sum(axis=0, dtype=np.float64)
        flat = part.reshape(-1)
        fourth += float(np.dot(flat, flat))
    return _Moments(fourth / matrix.size, rows, columns / len(matrix))
