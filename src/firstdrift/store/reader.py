"""The reader of trace directories: whole when whole, and precise about what is not."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..core.records import Record, parse_record
from ..core.regular import open_regular, read_regular
from ..core.sites import first_repeated
from ..core.strict_json import Json, decode_object
from ..core.traces import Trace
from ..errors import FormatError, SiteError, storage
from .layout import HEADER, INDEX, MAX_HEADER, MAX_LINE, data_file, parse_header, rank_directories
from .lock import is_held

NAME = "trace"


def recognise(path: Path) -> bool:
    """Whether a path is a trace directory (its header may be missing, its index not yet written)."""
    return (path / HEADER).is_file() or (path / INDEX).is_file()


def read(path: Path) -> Trace:
    """Open a trace directory. Damage that loses data is an error; what is merely missing becomes a problem."""
    problems: list[str] = []
    with _collector_paused(), storage(path, "read the trace", "check that it exists and that you may read it"):
        header = _read_header(path, problems)
        lines, finished = _read_index(path, problems)
        whole = _check_bytes(path, lines, problems)
        if header.get("rank", 0) == 0:
            _check_ranks(path, header, problems)
        trace = Trace(
            path, NAME, whole, lambda number: path / data_file(number), header=header, problems=problems,
            grows=not finished,
        )  # fmt: skip
    # Nobody vouched for an unfinished trace with an end line, so the bytes that carry a checksum are read once.
    return trace if finished else trace.with_problems(verify(trace))


def verify(trace: Trace, advance: Callable[[int], None] = lambda nbytes: None) -> list[str]:
    """Compare every checksum in the index with the bytes it stands for; one sentence for each that differs."""
    from ..kernels.checksums import crc32  # here, because few traces carry any

    problems = []
    for record in trace.records:
        expected = record.details.get("crc32")
        if expected is None or record.at is None:
            continue
        crc = crc32(np.ascontiguousarray(trace.array(record)))
        if crc != expected:
            problems.append(f"{record.site}: its bytes have crc32 {crc}, the index says {expected}; they were damaged")
        advance(record.nbytes)
    trace.check_unchanged()  # bytes that were lost meanwhile are no damage
    return problems


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Half the time of reading a large index would go into searching its records for cycles; they have none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read_header(path: Path, problems: list[str]) -> dict[str, Json]:
    file = path / HEADER
    if not file.is_file():
        problems.append(f"{HEADER} is missing, so nothing is known about the run")
        return {}
    if file.stat().st_size > MAX_HEADER:
        raise FormatError(
            f"{file}: has {file.stat().st_size} bytes, more than {MAX_HEADER}; this is not a trace header"
        )
    try:
        text = read_regular(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{file}: is not UTF-8 at byte {error.start}; restore it or record the trace again") from None
    return parse_header(text, file)


def _read_index(path: Path, problems: list[str]) -> tuple[list[Record], bool]:
    """All lines that are whole, and whether there is an end line."""
    file = path / INDEX
    if not file.is_file():
        problems.append(f"{INDEX} is missing: the writer stopped before its first tensor")
        return [], False
    with open_regular(file) as stream:
        lines, counted, torn = _parse_index(stream, file)
        alive = counted is None and is_held(stream.fileno())
    if (same := first_repeated(record.site for record in lines)) is not None:
        first, second = same
        raise FormatError(
            f"{file}, lines {first + 1} and {second + 1}: both are {lines[first].site}; give one its own call, sample "
            "or step"
        )
    if torn:
        problems.append(f"{INDEX}, line {torn} is torn: the writer was stopped while writing it")
    if counted is None:
        what = "its writer is still running" if alive else "the writer was stopped before it closed the trace"
        problems.append(f"{INDEX} has no end line: {what}; sites there: {len(lines)}")
    elif counted != len(lines):
        problems.append(f"{INDEX} has {len(lines)} lines but its end line counts {counted}; lines were lost or added")
    return lines, counted is not None


def _parse_index(stream: BinaryIO, file: Path) -> tuple[list[Record], int | None, int | None]:
    """The records of an index, what its end line counts, and the number of its last line if that was cut short."""
    records: list[Record] = []
    end = None
    for number, raw in enumerate(iter(lambda: stream.readline(MAX_LINE + 1), b""), 1):
        if len(raw) > MAX_LINE:
            raise FormatError(f"{file}: has a line longer than {MAX_LINE} bytes; this is not an index")
        try:
            line = decode_object(raw.decode("utf-8"))
        except (FormatError, UnicodeDecodeError) as error:
            if not raw.endswith(b"\n"):
                return records, end, number
            why = error if isinstance(error, FormatError) else f"it is not UTF-8 ({error.reason})"
            raise FormatError(f"{file}, line {number}: {why}; restore the file, or record the trace again") from None
        try:
            if end is not None:
                raise FormatError("it follows the end line; two runs were written into one trace")
            if "end" not in line:
                records.append(parse_record(line))
                continue
            end = line["end"]
            if type(end) is not int or end < 0:
                raise FormatError(f"the end line counts {end!r}; it must count the lines before it")
        except (FormatError, SiteError) as error:
            raise FormatError(f"{file}, line {number}: {error}") from None
    return records, end, None


def _check_bytes(path: Path, lines: list[Record], problems: list[str]) -> list[Record]:
    """The records whose bytes are all there; the others are named."""
    sizes: dict[int, int] = {}
    for number in {record.at[0] for record in lines if record.at}:
        file = path / data_file(number)
        sizes[number] = file.stat().st_size if file.is_file() else -1
    whole = []
    for record in lines:
        at = record.at
        if at is None or not at[2] or at[1] + at[2] <= sizes[at[0]]:
            whole.append(record)
            continue
        has = f"has {sizes[at[0]]}" if sizes[at[0]] >= 0 else "is missing"
        end = at[1] + at[2]
        problems.append(f"{record.site} is not whole: it ends at byte {end} of {data_file(at[0])}, which {has}")
    return whole


def _check_ranks(path: Path, header: dict[str, Json], problems: list[str]) -> None:
    """The run says how many ranks it had; those that are not there are missing."""
    there = {rank: directory for rank, directory in rank_directories(path).items() if recognise(directory)}
    missing = [rank for rank in range(1, header.get("ranks", 1)) if rank not in there]
    if missing:
        some = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        problems.append(f"{len(missing)} of {header['ranks']} ranks left no trace in this run: {some}")
    for rank, directory in there.items():
        if rank < header.get("ranks", 1) and not _has_end_line(directory / INDEX):
            problems.append(f"rank {rank} is not complete: its {INDEX} has no end line")


def _has_end_line(index: Path) -> bool:
    if not index.is_file():
        return False
    with open_regular(index) as file:
        file.seek(max(0, index.stat().st_size - 64))
        return re.search(rb'\{\s*"end"\s*:\s*\d+\s*\}\s*$', file.read()) is not None
