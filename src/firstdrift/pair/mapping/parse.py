"""A mapping file into a `Mapping`. Every error says file, line, name, and what to write instead."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any

from ...errors import FormatError, VersionError
from ..pairs import Tolerance, Transform
from . import line_options
from .lines import Line, Mapping
from .patterns import Pattern
from .yaml_tables import Table, load_table, read_text

VERSION = 1
SECTIONS = ("version", "pairs", "candidate_ignore", "meant")
OPTIONS = (
    "candidate", "phase", "port", *line_options.TRANSFORMS, "steps", "concatenate", "tolerance", "shared", "ignore",
)  # fmt: skip
_BESIDE_IGNORE = {"ignore", "phase", "port"}


def read_map(path: str | PathLike[str]) -> Mapping:
    """Read a mapping file."""
    return parse_map(read_text(path), fspath(path))


def parse_map(text: str, place: str = "map") -> Mapping:
    """Read the text of a mapping file; `place` is what errors call it."""
    found = load_table(text, place, "reference name: candidate name")
    if not found.keys() & set(SECTIONS):
        return Mapping(place, _lines(found, place), written=found)
    for key in found:
        if key not in SECTIONS:
            raise FormatError(
                f"{place}, line {found.lines[key]}: {key!r} is none of {', '.join(SECTIONS)}; "
                "move it below 'pairs:' when it is a name"
            )
    _check_version(found, place)
    pairs, ignored = _section(found, "pairs", place), _section(found, "candidate_ignore", place)
    meant = _meant(_section(found, "meant", place), place)
    return Mapping(place, _lines(pairs, place), _ignored_lines(ignored, place), pairs, ignored, meant)


def _check_version(found: Table, place: str) -> None:
    version = found.get("version", VERSION)
    where = f"{place}, line {found.lines.get('version', 1)}"
    if type(version) is not int or version < 1:
        raise FormatError(f"{where}: version is {version!r}; write version: {VERSION}")
    if version > VERSION:
        raise VersionError(
            f"{where}: the map has version {version}, but this firstdrift reads up to {VERSION}; install a newer one"
        )


def _section(found: Table, key: str, place: str) -> Table:
    table = found.get(key)
    if table is None:  # left out, or nothing but comments below it
        return Table()
    if not isinstance(table, Table):
        raise FormatError(
            f"{place}, line {found.lines[key]}: {key} is {table!r}, not a table; write one name a line below it, "
            f"or, where {key!r} is itself a name, put it below 'pairs:'"
        )
    return table


def _lines(table: Table, place: str) -> tuple[Line, ...]:
    lines: list[Line] = []
    for key, value in table.items():
        where = f"{place}, line {table.lines[key]}, {_short(key)}"
        reference = line_options.name_pattern(key, "name", where)
        items = value if isinstance(value, list) else [value]
        if not items:
            raise FormatError(f"{where}: its list is empty; write the candidate's name")
        lines.extend(_line(reference, item, where) for item in items)
    return tuple(lines)


def _line(reference: Pattern, value: Any, place: str) -> Line:
    if isinstance(value, Table):
        return _long_line(reference, value, place)
    if value is None:
        raise FormatError(f"{place}: no candidate stands behind it; write its name, or {{ignore: reason}}")
    if isinstance(value, list):
        raise FormatError(
            f"{place}: a list in a list; for one tensor made of several write {{candidate: [...], concatenate: 0}}"
        )
    return Line(place, reference, _candidates(reference, value, place))


def _long_line(reference: Pattern, given: Table, place: str) -> Line:
    for key in given:
        if key not in OPTIONS:
            raise FormatError(f"{place}: {key!r} is not an option; use {', '.join(OPTIONS)}")
    if not given.keys() - {"phase"}:
        raise FormatError(f"{place}: it says nothing about the tensor; add 'candidate: NAME', or write a name only")
    if "ignore" in given and given.keys() - _BESIDE_IGNORE:
        beside = min(given.keys() - _BESIDE_IGNORE)
        raise FormatError(f"{place}: it is ignored and has {beside!r} too; keep one of the two")
    candidates = _candidates(reference, given["candidate"], place) if "candidate" in given else ()
    return Line(
        place,
        reference,
        candidates,
        ports=line_options.ports(given["port"], place) if "port" in given else (),
        phases=line_options.phases(given["phase"], place) if "phase" in given else (),
        transforms=_transforms(given, place),
        concatenate=_concatenate(given, len(candidates), place),
        tolerance=Tolerance(line_options.tolerance(given["tolerance"], place), place) if "tolerance" in given else None,
        ignore=line_options.reason(given["ignore"], place) if "ignore" in given else None,
        shared="shared" in given and line_options.flag(given["shared"], "shared", place),
    )


def _transforms(given: Table, place: str) -> tuple[Transform, ...]:
    """Steps in the order in which they stand: options of their own or, where one comes twice, a list of `steps`."""
    alone = [key for key in given if key in line_options.TRANSFORMS]
    if "steps" not in given:  # a table keeps the order in which it was written
        return tuple(line_options.TRANSFORMS[key](given[key], place) for key in alone)
    if alone:
        raise FormatError(f"{place}: {alone[0]!r} stands beside 'steps'; put it into the list, at its place")
    steps = given["steps"]
    if not isinstance(steps, list) or not steps:
        raise FormatError(
            f"{place}: steps {steps!r} is not a list; write, say, [{{reshape: [-1, 64]}}, {{permute: [1, 0]}}]"
        )
    made = []
    for step in steps:
        if not isinstance(step, Table) or len(step) != 1 or next(iter(step)) not in line_options.TRANSFORMS:
            raise FormatError(
                f"{place}: step {step!r} is not one of {', '.join(line_options.TRANSFORMS)} with its value; "
                "write one a list item, such as {permute: [1, 0]}"
            )
        ((key, value),) = step.items()
        made.append(line_options.TRANSFORMS[key](value, place))
    return tuple(made)


def _candidates(reference: Pattern, value: Any, place: str) -> tuple[Pattern, ...]:
    names = value if isinstance(value, list) else [value]
    if not names:
        raise FormatError(f"{place}: candidate is an empty list; name one")
    patterns = tuple(line_options.name_pattern(name, "candidate", place) for name in names)
    joined: set[Pattern] = set()
    for pattern in patterns:
        line_options.check_placeholders(reference, pattern, place)
        if pattern in joined:
            raise FormatError(f"{place}: {pattern.text!r} is joined twice; name each candidate once")
        joined.add(pattern)
    return patterns


def _concatenate(given: Table, candidates: int, place: str) -> int | None:
    if "concatenate" not in given:
        if candidates > 1:
            raise FormatError(f"{place}: {candidates} candidates and no axis; add 'concatenate: AXIS'")
        return None
    if candidates < 2:
        raise FormatError(f"{place}: concatenate with {candidates} candidates; list the names to join in 'candidate'")
    return line_options.axis(given["concatenate"], "concatenate", place)


def _ignored_lines(table: Table, place: str) -> tuple[Line, ...]:
    """`name: reason`, or `name: {ignore: reason, phase: ..., port: ...}`."""
    lines = []
    for key, value in table.items():
        where = f"{place}, line {table.lines[key]}, {_short(key)}"
        given = value
        if not isinstance(value, Table):
            given = Table()
            given["ignore"] = value
        if "ignore" not in given:
            raise FormatError(f"{where}: a candidate's name to ignore needs a reason; write 'name: reason'")
        lines.append(_long_line(line_options.name_pattern(key, "name", where), given, where))
    return tuple(lines)


def _meant(table: Table, place: str) -> dict[str, str]:
    """`where.key: reason`, of settings that both sides state and that may differ."""
    return {
        key: line_options.reason(value, f"{place}, line {table.lines[key]}, {_short(key)}", "meant")
        for key, value in table.items()
    }


def _short(key: str) -> str:
    return repr(key if len(key) <= 60 else f"{key[:60]}...")
