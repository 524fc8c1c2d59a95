"""Declared maps: what each tensor of a file is called in the model, and how it is laid out there.

Two columns, the file's name and the model's, with `{}` and `*` as in every map of ours. `None` drops a tensor on
purpose. Nothing that a map does not say is done to a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

from ...errors import FormatError
from ...pair.mapping.line_options import TRANSFORMS, axis, check_placeholders, flag, name_pattern
from ...pair.mapping.patterns import Captures, Pattern
from ...pair.mapping.yaml_tables import load_table, read_text
from ...pair.pairs import Transform

STEPS = {kind: parse for kind, parse in TRANSFORMS.items() if kind != "scale"}  # a scaled weight is another weight
OPTIONS = ("to", *STEPS, "steps", "split", "join", "place", "tie")

Map = Mapping[str, Any] | str | PathLike[str]


@dataclass(frozen=True, slots=True)
class Line:
    """One line. Without `targets` the tensors it names are dropped.

    `steps` turn the file's tensor into the model's layout. Then it is one of the targets, or all of them at once
    (`tie`), or is cut along the axis `split` into as many as there are, or is piece number `place` of the one target,
    whose pieces follow each other along the axis `join`.
    """

    where: str
    source: Pattern
    targets: tuple[Pattern, ...] = ()
    steps: tuple[Transform, ...] = ()
    split: int | None = None
    join: int | None = None
    place: int = 0
    tie: bool = False

    def names(self, captures: Captures) -> tuple[str, ...]:
        """The model's names, once the placeholders stand for something."""
        return tuple(target.fill(captures) for target in self.targets)


@dataclass(frozen=True, slots=True)
class LoadMap:
    """A map, its lines as they were written."""

    lines: tuple[Line, ...] = ()
    _exact: dict[str, Line] = field(default_factory=dict, init=False, compare=False, repr=False)
    _patterns: list[Line] = field(default_factory=list, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for line in self.lines:
            if line.source.exact:
                self._exact.setdefault(line.source.literals[0], line)
            else:
                self._patterns.append(line)

    def find(self, name: str) -> tuple[Line, Captures] | None:
        """The line that speaks of a tensor of the file: a plain name before `{}` before `*`, then the earlier one."""
        if name in self._exact:  # without a search: a map may have a line for each of ten thousands of tensors
            return self._exact[name], {}
        found = [(line, captures) for line in self._patterns if (captures := line.source.match(name)) is not None]
        return min(found, key=lambda one: one[0].source.rank, default=None)


def read_map(given: Map | None) -> LoadMap | None:
    """A map from a table in Python or from a YAML file; None where none is given."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return LoadMap(tuple(_line(name, value, f"map, {name!r}") for name, value in given.items()))
    where = fspath(given)
    table = load_table(read_text(given), where, "name in the file: name in the model")
    lines = (_line(name, value, f"{where}, line {table.lines[name]}, {name!r}") for name, value in table.items())
    return LoadMap(tuple(lines))


def _line(name: Any, value: Any, where: str) -> Line:
    source = name_pattern(name, "name", where)
    if value is None:
        return Line(where, source)
    if isinstance(value, str):
        value = {"to": value}
    if not isinstance(value, Mapping) or "to" not in value:
        raise FormatError(f"{where}: {value!r} does not say where it goes; write a name, null, or {{to: ...}}")
    for key in value:
        if key not in OPTIONS:
            raise FormatError(f"{where}: {key!r} is not an option; use {', '.join(OPTIONS)}")
    targets = _targets(source, value["to"], where)
    line = Line(
        where,
        source,
        targets,
        steps=_steps(value, where),
        split=axis(value["split"], "split", where) if "split" in value else None,
        join=axis(value["join"], "join", where) if "join" in value else None,
        place=_place(value, where),
        tie="tie" in value and flag(value["tie"], "tie", where),
    )
    _check_shape_of(line, value)
    return line


def _targets(source: Pattern, value: Any, where: str) -> tuple[Pattern, ...]:
    names = list(value) if isinstance(value, list | tuple) else [value]
    if not names:
        raise FormatError(f"{where}: 'to' is an empty list; name a tensor of the model, or write null to drop it")
    patterns = tuple(name_pattern(name, "to", where) for name in names)
    for pattern in patterns:
        check_placeholders(source, pattern, where)
    return patterns


def _steps(value: Mapping[str, Any], where: str) -> tuple[Transform, ...]:
    """The steps in the order in which they are written; a list is for those that are needed twice."""
    given = [{key: value[key]} for key in value if key in STEPS]
    if "steps" in value:
        listed = value["steps"]
        if given or not isinstance(listed, list | tuple):
            raise FormatError(f"{where}: steps is a list that replaces {', '.join(STEPS)}; write one of the two")
        given = list(listed)
    found = []
    for step in given:
        if not isinstance(step, Mapping) or len(step) != 1 or next(iter(step)) not in STEPS:
            raise FormatError(
                f"{where}: step {step!r} is not one of {', '.join(STEPS)}; write, say, {{transpose: true}}"
            )
        ((kind, argument),) = step.items()
        found.append(STEPS[kind](list(argument) if isinstance(argument, tuple) else argument, where))
    return tuple(found)


def _place(value: Mapping[str, Any], where: str) -> int:
    place = value.get("place", 0)
    if type(place) is not int or place < 0:
        raise FormatError(f"{where}: place is {place!r}; number the pieces of a joined tensor from 0")
    return place


def _check_shape_of(line: Line, value: Mapping[str, Any]) -> None:
    ways = [way for way in ("split", "join", "tie") if way in value]
    if len(ways) > 1:
        raise FormatError(f"{line.where}: {' and '.join(ways)} at once; keep one of them")
    if len(line.targets) > 1 and not (line.tie or line.split is not None):
        raise FormatError(f"{line.where}: goes to {len(line.targets)} tensors; add 'split: AXIS', or 'tie: true'")
    if len(line.targets) == 1 and (line.tie or line.split is not None):
        raise FormatError(f"{line.where}: {ways[0]} needs several names in 'to'; list them")
    if ("place" in value) != (line.join is not None):
        raise FormatError(f"{line.where}: 'join: AXIS' and 'place: NUMBER' go together; write both")
    if len(line.targets) > 1 and line.join is not None:
        raise FormatError(f"{line.where}: is one piece of several tensors; name one")
