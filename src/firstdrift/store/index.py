"""Reading index.jsonl: every line validated, a hundred thousand of them in the time json.loads would take.

Lines are taken in blocks. A block that looks like what nearly every trace holds is checked column by column
with functions that loop in C; any other block is parsed line by line, which is the definition and finds the
words for what is wrong. The two give the same records, and a property test says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from ..core.dtypes import ITEMSIZE
from ..core.records import CORE_KEYS, NOTHING, At, Record, core_fields, line_details, parse_record, tensor_bytes
from ..core.sites import MAX_INDEX, PHASE_RANK, Site, check_name
from ..core.strict_json import decode_object, scan
from ..errors import FirstdriftError, FormatError, SiteError
from .layout import MAX_LINE

BLOCK_BYTES = 256 << 10
_INT = {int}
_STR = {str}
_third = itemgetter(2)
_make_site = partial(tuple.__new__, Site)
_make_record = partial(tuple.__new__, Record)


class IndexReader:
    """Reads an open index: iterate over its records, then ask `end` and `torn`."""

    def __init__(self, stream: BinaryIO, file: Path) -> None:
        self._stream = stream
        self._file = file
        self.end: int | None = None  # what the end line counts
        self.torn: int | None = None  # the number of the last line, when it was cut short

    def __iter__(self) -> Iterator[Record]:
        first = 1
        for lines in self._blocks():
            records = parse_block(lines) if self.end is None else None
            yield from self._slowly(lines, first) if records is None else records
            first += len(lines)

    def _blocks(self) -> Iterator[list[bytes]]:
        """The lines in blocks, each line whole; the last one may lack its newline.

        The last line stands alone, since it ends the index: beside it, no line would look like all others.
        """
        tail = b""
        last: list[bytes] = []
        while block := self._stream.read(BLOCK_BYTES):
            *lines, tail = (tail + block).split(b"\n")
            if len(tail) > MAX_LINE:
                raise FormatError(f"{self._file}: has a line longer than {MAX_LINE} bytes; this is not an index")
            whole = [*last, *lines]
            last = whole[-1:]
            if len(whole) > 1:
                yield whole[:-1]
        if last:
            yield last
        if tail:
            self._unterminated = True
            yield [tail]

    _unterminated = False

    def _slowly(self, lines: list[bytes], first: int) -> Iterator[Record]:
        for number, raw in enumerate(lines, first):
            try:
                line = decode_object(raw.decode("utf-8"))
            except (FormatError, UnicodeDecodeError) as error:
                if self._unterminated:
                    self.torn = number
                    return
                why = error if isinstance(error, FormatError) else f"it is not UTF-8 ({error.reason})"
                raise self._wrong(number, f"{why}; restore the file, or record the trace again") from None
            if self.end is not None:
                raise self._wrong(number, "it follows the end line; two runs were written into one trace")
            if "end" in line:
                self.end = line["end"]
                if type(self.end) is not int or self.end < 0:
                    raise self._wrong(number, f"the end line counts {self.end!r}; it must count the lines before it")
                continue
            try:
                yield parse_record(line)
            except (FormatError, SiteError) as error:
                raise self._wrong(number, str(error)) from None

    def _wrong(self, number: int, why: str) -> FormatError:
        return FormatError(f"{self._file}, line {number}: {why}")


def parse_block(lines: list[bytes]) -> list[Record] | None:
    """The records of lines that are all whole, ordinary tensors; None when any of them needs a closer look."""
    try:
        parsed = list(map(scan, map(bytes.decode, lines), repeat(0)))
        if len(parsed) != len(lines):
            return None  # the scanner ends the map at a line it cannot read
        objects, ends = zip(*parsed, strict=True)
        if list(map(len, lines)) != list(ends):  # also refuses non-ASCII lines, whose bytes outnumber characters
            return None
        steps, phases, names, ports, calls, samples, dtypes, shapes, places = zip(
            *map(core_fields, objects), strict=True
        )
        at = _check_places(places)
        if at is None or not _sites_are_valid(steps, phases, names, ports, calls, samples):
            return None
        dims = list(map(tuple, shapes))
        if not (set(map(type, shapes)) == {list} and set(map(type, chain.from_iterable(dims))) <= _INT):
            return None
        if not (set(map(type, dtypes)) == _STR and set(dtypes) <= ITEMSIZE.keys()):
            return None
        kinds = list(zip(dtypes, dims, strict=True))
        anywhere = Site(0, "fwd", "", "out")
        sizes = {kind: tensor_bytes(anywhere, *kind) for kind in set(kinds)}
        if list(map(_third, at)) != list(map(sizes.__getitem__, kinds)):
            return None
        sites: list[Site] = list(map(_make_site, zip(steps, phases, names, ports, calls, samples, strict=True)))
        details = repeat(NOTHING)
        if set(map(len, objects)) != {len(CORE_KEYS)}:
            details = map(line_details, objects, sites)  # type: ignore[assignment]
        records: list[Record] = list(map(_make_record, zip(sites, dtypes, dims, at, details)))  # noqa: B905 (repeat)
        return None if any("absent" in record.details for record in records) else records
    except (ValueError, TypeError, KeyError, RecursionError, FirstdriftError):
        return None


def _sites_are_valid(steps, phases, names, ports, calls, samples) -> bool:  # type: ignore[no-untyped-def]
    numbered = [sample for sample in samples if sample is not None]
    for name in {*names, *ports}:
        check_name(name)
    return (
        set(map(type, steps)) == _INT == set(map(type, calls))
        and set(map(type, numbered)) <= _INT
        and min(steps) >= 0 <= min(calls)
        and min(numbered, default=0) >= 0
        and max(max(steps), max(calls), max(numbered, default=0)) <= MAX_INDEX
        and set(map(type, phases)) == _STR == set(map(type, names)) == set(map(type, ports))
        and set(phases) <= PHASE_RANK.keys()
    )


def _check_places(places: tuple[object, ...]) -> list[At] | None:
    if set(map(type, places)) != {list} or set(map(len, places)) != {3}:  # type: ignore[arg-type]
        return None
    flat: list[int] = list(chain.from_iterable(places))  # type: ignore[arg-type]
    if set(map(type, flat)) != _INT or min(flat) < 0 or max(flat) > MAX_INDEX:
        return None
    return list(map(tuple, places))  # type: ignore[arg-type]
