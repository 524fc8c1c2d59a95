"""The trace directory as one of the formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...core.strict_json import Json
from ...core.traces import Trace, doubts
from ...errors import without_raising
from .. import reader
from ..reader import NAME, read

__all__ = ["NAME", "read", "recognise", "write"]

_OPTIONS = frozenset({"self", "path", "overwrite", "checksum", "background"})
_PARAMETERS = frozenset({"self", "array", "reason", "producers"})
_SAID_OTHERWISE = frozenset({"crc32", "stats", "absent", "from"})
_SET_BY_WRITER = frozenset({"format", "version", "rank", "ranks"})
recognise = without_raising(reader.recognise)


def write(trace: Trace, path: Path, *, overwrite: bool, advance: Callable[[int], None]) -> list[str]:
    """Write any trace as a trace directory, with checksums where the source had them."""
    from ..writer import Writer  # here, because reading is what most do

    checksum = any("crc32" in record.details for record in trace.lines)
    left: set[str] = set()

    def free(said: Mapping[str, Json], taken: frozenset[str]) -> dict[str, Json]:
        left.update(said.keys() & taken)
        return {key: item for key, item in said.items() if key not in taken}

    header = {key: item for key, item in trace.header.items() if key not in _SET_BY_WRITER} | doubts(trace)
    with Writer(path, overwrite=overwrite, checksum=checksum, **free(header, _OPTIONS)) as writer:
        for record in trace.lines:
            step, phase, name, port, call, sample = record.site
            place: dict[str, Any] = {"port": port, "step": step, "call": call, "sample": sample}
            details = {key: item for key, item in record.details.items() if key not in _SAID_OTHERWISE}
            details = free(details, _PARAMETERS)
            details["producers"] = record.producers
            if record.absent is not None:
                writer.put_absent(name, phase, record.absent, **place, **details)
            elif record.at is None:
                assert record.dtype is not None
                assert record.shape is not None
                writer.put_stats(
                    name,
                    phase,
                    record.details.get("stats", {}),
                    dtype=record.dtype,
                    shape=record.shape,
                    **place,
                    **details,
                )
            else:
                stats = record.details.get("stats")
                writer.put(name, phase, trace.array(record), **place, stats=stats, **details)
            advance(record.nbytes)
        trace.check_unchanged()  # before the end line vouches for it
    return [f"the keys {', '.join(sorted(left))} were left out: the writer has parameters of that name"] if left else []
