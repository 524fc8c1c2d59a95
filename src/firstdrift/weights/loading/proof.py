"""The proof of a load: for every tensor of the model where its numbers came from, and the checksum of both sides."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...core.strict_json import Json
from ...kernels import checksums, stats
from ...kernels.checksums import crc32
from ..checkpoint import Array
from .failures import MEAN

SCHEMA = "firstdrift-load-v1"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One tensor of the model that was written.

    `sources` are the file's tensors and the steps applied. `crc32` was read back from the model and equals the file's.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    sources: tuple[str, ...]
    crc32: int
    rounded: int = 0
    tied: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """JSON of this line of the proof."""
        return {
            "name": self.name, "kind": self.kind, "shape": list(self.shape), "dtype": self.dtype,
            "sources": list(self.sources), "crc32": f"{self.crc32:08x}", "rounded": self.rounded,
            "tied": list(self.tied),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of a load; `proof` has a line for each tensor of the model.

    `extra`: tensors of the file without a place in the model. `dropped`: those that the map leaves out.
    """

    source: str
    format: str
    proof: tuple[Arrival, ...]
    extra: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def count(self) -> int:
        """Tensors written; tied ones count once."""
        return len(self.proof)

    @property
    def rounded(self) -> int:
        """Values changed by rounding."""
        return sum(arrival.rounded for arrival in self.proof)

    def to_json(self) -> dict[str, Json]:
        """JSON of schema `firstdrift-load-v1`."""
        return {
            "schema": SCHEMA, "source": self.source, "format": self.format, "hash": "crc32", "count": self.count,
            "rounded": self.rounded, "parameters": [arrival.to_json() for arrival in self.proof],
            "extra": list(self.extra), "dropped": list(self.dropped), "notes": list(self.notes),
        }  # fmt: skip

    def __str__(self) -> str:
        said = [f"{self.count} tensors loaded from {self.source}, each read back and equal"]
        said += [f"{self.rounded} values rounded"] if self.rounded else []
        said += [f"{len(self.extra)} tensors of the file not used ({_some(self.extra)})"] if self.extra else []
        said += [f"{len(self.dropped)} dropped by the map ({_some(self.dropped)})"] if self.dropped else []
        return "; ".join(said)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


LARGEST_MEAN = 100.0


def scan(array: Array) -> tuple[int, str | None]:
    """The CRC-32 of a contiguous array's bytes, and what is wrong with its values: NaN, infinity, a mean beyond 100."""
    if array.dtype.name not in ("float16", "float32", "float64", "bfloat16"):
        return crc32(array), wrong_values(array)
    crc, largest = checksums.scan(array)
    # No mean is larger than the largest magnitude, which is nearly always small enough to say all.
    limits = np.array([np.inf, LARGEST_MEAN], array.dtype).view(f"u{array.dtype.itemsize}")
    suspicious = largest >= int(limits[0]) or largest > int(limits[1])
    return crc, wrong_values(array) if suspicious else None


def wrong_values(array: Array) -> str | None:
    """Why these cannot be weights; None when they can. Integers and flags may have any value."""
    if array.dtype.kind in "iub" or not array.size:
        return None
    if array.dtype.kind == "c":
        return wrong_values(array.real) or wrong_values(array.imag)
    found = stats(array)
    bad = [f"{n} {what}" for n, what in ((found.nan_count, "NaN"), (found.inf_count, "Inf")) if n]
    if bad:
        return f"{' and '.join(bad)} among {found.count} values"
    mean = found.mean or 0.0
    return f"its mean is {mean:.6g}, beyond ±{LARGEST_MEAN:g} ({MEAN})" if abs(mean) > LARGEST_MEAN else None
