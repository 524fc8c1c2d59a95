"""program.jsonl read back: definitions are parsed at once, a step when it is asked for.

So a small file cannot ask for much memory. Everything is validated where it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ...core.regular import open_regular
from ...core.sites import check_index, check_name
from ...core.strict_json import Json, decode_object
from ...core.traces import Trace
from ...errors import FormatError, SiteError, VersionError, storage
from ...store.layout import MAX_LINE, PROGRAM
from ..calls import Place, Program, Step, Type
from .defined import dotted_name, place_of, type_of
from .program_writer import VERSION
from .repeats import repeated
from .step_lines import Building

MOST_LINES = 40_000_000  # of a step
STEPS_KEPT = 2


class _Span(NamedTuple):
    """Where the lines of a step lie in the file."""

    number: int  # of its first line in the file, from 1
    offset: int
    lines: int
    like: int | None = None
    said: Mapping[str, Json] = {}


def read_program(trace: Trace) -> Program | None:
    """The program of a trace, None if it has none; raises FormatError where it cannot be understood.

    A program that was cut off holds the steps that are whole, and says so in its `problems`.
    """
    file = trace.path / PROGRAM
    if trace.format != "trace" or not file.is_file():
        return None
    with storage(file, "read the program", "check that you may read it"), open_regular(file) as stream:
        try:
            return _Reading(file, trace).read(stream)
        except RecursionError:
            raise FormatError(f"{file}: it is nested too deeply; this is no program") from None


class _Reading:
    """The file scanned once: definitions are parsed, steps are found and left where they are."""

    def __init__(self, file: Path, trace: Trace) -> None:
        self.file = file
        self.trace = trace
        self.types: list[Type] = []
        self.modules: list[str] = []
        self.functions: list[str] = []
        self.places: list[Place] = []
        self.spans: dict[int, _Span] = {}
        self.problems: list[str] = []

    def read(self, stream: BinaryIO) -> Program:
        lines = _Lines(stream, self.file)
        first = lines.next()
        if first is None:
            return Program({}, {}, (f"{PROGRAM} is empty: its writer was stopped before it wrote anything",))
        header = self._header(first)
        end = None
        while (line := lines.next()) is not None:
            said = self._object(line, lines.number)
            if end is not None:
                raise self._wrong(lines.number, "it follows the end line; two programs were written into one")
            if "end" in said:
                end = said["end"]
                if type(end) is not int or end != lines.number - 1:
                    raise self._wrong(lines.number, f"the end line counts {end!r} lines and {lines.number - 1} came")
            elif "step" in said:
                self._step(said, lines)
            else:
                self._define(said, lines.number)
        if lines.torn:
            self.problems.append(f"{PROGRAM}, line {lines.number + 1} is torn: the writer was stopped while writing it")
        if end is None:
            self.problems.append(f"{PROGRAM} has no end line; whole steps: {len(self.spans)}")
        return Program(header, _Steps(self), tuple(self.problems))

    def _header(self, line: bytes) -> dict[str, Json]:
        said = self._object(line, 1)
        version = said.get("program")
        if type(version) is not int or version < 1:
            raise self._wrong(1, f"'program' is {version!r}, not a version such as {VERSION}; this is no program")
        if version > VERSION:
            raise VersionError(f"{self.file}: version {version}, but this firstdrift reads up to {VERSION}; upgrade it")
        return said

    def _define(self, said: dict[str, Json], number: int) -> None:
        there: dict[str, Sequence[object]] = {
            "type": self.types, "module": self.modules, "function": self.functions, "line": self.places
        }  # fmt: skip
        kind = next((key for key in there if key in said), None)
        item = said[kind] if kind is not None else None
        if kind is None or type(item) is not list or not item:
            raise self._wrong(
                number, f"{sorted(said)[:4]} is no type, module, function, line or step; write one of these"
            )
        if item[0] != len(there[kind]) or type(item[0]) is not int:
            raise self._wrong(number, f"{kind} {item[0]!r} comes where {len(there[kind])} should; number them in order")
        try:
            if kind == "type":
                self.types.append(type_of(item[1:]))
            elif kind == "module":
                self.modules.append(check_name(_only(item[1:]), "module"))
            elif kind == "function":
                self.functions.append(dotted_name(_only(item[1:]), "function"))
            else:
                self.places.append(place_of(item[1:]))
        except (FormatError, SiteError) as error:
            raise self._wrong(number, str(error)) from None

    def _step(self, said: dict[str, Json], lines: _Lines) -> None:
        start = lines.number
        try:
            number = check_index(said["step"], "step")
        except SiteError as error:
            raise self._wrong(start, str(error)) from None
        if number in self.spans:
            raise self._wrong(start, f"step {number} came before; a step has one program")
        like = said.get("like")
        if like is not None:
            if type(like) is not int or like not in self.spans or self.spans[like].like is not None:
                raise self._wrong(start, f"step {number} is like step {like!r}, of which no program came before")
            self.spans[number] = self.spans[like]._replace(like=like, said=said)
            return
        count = said.get("lines")
        if type(count) is not int or not 0 <= count <= MOST_LINES:
            raise self._wrong(start, f"step {number} counts {count!r} lines; say how many follow")
        offset = lines.offset
        if lines.skip(count):
            self.spans[number] = _Span(start + 1, offset, count)
        else:
            self.problems.append(f"{PROGRAM} ends inside step {number}, which is left out")

    def parse(self, number: int) -> Step:
        """The program of one step, read from the file again."""
        try:
            return self._parse(number)
        except RecursionError:
            raise FormatError(f"{self.file}, step {number}: it is nested too deeply; this is no program") from None

    def _parse(self, number: int) -> Step:
        span = self.spans[number]
        with storage(self.file, "read the program", "check that you may read it"), open_regular(self.file) as stream:
            stream.seek(span.offset)
            raw = [stream.readline(MAX_LINE + 1) for _ in range(span.lines)]
        lines = [self._object(line, span.number + at) for at, line in enumerate(raw)]
        if span.like is not None:
            lines = repeated(lines, span.said, f"{self.file}, step {number}")
        return Building(self.trace, self.file, self, number, span.number).build(lines)

    def _object(self, line: bytes, number: int) -> dict[str, Json]:
        try:
            return decode_object(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise self._wrong(number, f"it is not UTF-8 ({error.reason})") from None
        except FormatError as error:
            raise self._wrong(number, str(error)) from None

    def _wrong(self, number: int, why: str) -> FormatError:
        return FormatError(f"{self.file}, line {number}: {why}")


class _Steps(Mapping[int, Step]):
    """Steps by number, parsed when asked for."""

    def __init__(self, reading: _Reading) -> None:
        self._numbers = list(reading.spans)
        self._parse = lru_cache(maxsize=STEPS_KEPT)(reading.parse)

    def __getitem__(self, number: int) -> Step:
        if number not in self._numbers:
            raise KeyError(number)
        return self._parse(number)

    def __contains__(self, number: object) -> bool:
        return number in self._numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


class _Lines:
    """The lines of a file one by one, each whole and none too long."""

    def __init__(self, stream: BinaryIO, file: Path) -> None:
        self._stream = stream
        self._file = file
        self.number = 0  # of the line last read
        self.offset = 0  # behind it
        self.torn = False

    def next(self) -> bytes | None:
        line = self._stream.readline(MAX_LINE + 1)
        if len(line) > MAX_LINE:
            raise FormatError(f"{self._file}: has a line longer than {MAX_LINE} bytes; this is no program")
        if not line.endswith(b"\n"):
            self.torn = bool(line)
            return None
        self.number += 1
        self.offset += len(line)
        return line

    def skip(self, count: int) -> bool:
        return all(self.next() is not None for _ in range(count))


def _only(said: list[Json]) -> Json:
    return said[0] if len(said) == 1 else said
