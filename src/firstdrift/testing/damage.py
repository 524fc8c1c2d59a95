"""Ways to harm what a format wrote, and what may come out of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..compare.open_trace import Format
from ..core.sites import Site
from ..core.traces import Trace
from ..errors import FirstdriftError
from .samples import bits

ALL_CUTS_UP_TO = 700  # bytes; of larger files both ends and a sample between are cut


class Outcome(NamedTuple):
    """What came of reading: the values that could be had, and every complaint on the way."""

    trace: Trace | None
    values: dict[Site, bytes]
    complaints: list[str]


def read_all(format: Format, path: Path) -> Outcome:
    """Read a trace and every tensor in it. Any exception but ours passes through, to fail the test."""
    try:
        trace = format.read(path)
    except FirstdriftError as error:
        return Outcome(None, {}, [str(error)])
    values: dict[Site, bytes] = {}
    complaints = list(trace.problems)
    for record in trace:
        if record.at is None:
            continue
        try:
            values[record.site] = bits(trace.array(record))
        except FirstdriftError as error:
            complaints.append(str(error))
    return Outcome(trace, values, complaints)


def files_of(path: Path) -> list[Path]:
    """Every file at or below a path."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def snapshot(path: Path) -> dict[str, bytes]:
    """The files at or below a path, by their name relative to it."""
    return {str(file.relative_to(path)): file.read_bytes() for file in files_of(path)}


def cuts(size: int) -> list[int]:
    """The lengths to truncate a file of this size to."""
    if size <= ALL_CUTS_UP_TO:
        return list(range(size))
    ends = [*range(96), *range(size - 96, size)]
    return sorted({*ends, *range(0, size, max(1, size // 300))})


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file may grow beyond `limit` bytes: the system refuses the write, as it does on a full disk."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
