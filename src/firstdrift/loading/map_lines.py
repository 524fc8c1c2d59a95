"""Lines of a map that somebody may want: what they say, and how they stand in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..pair.mapping.patterns import MAX_PLACEHOLDERS, RUN, escape, parse_pattern
from ..pair.mapping.quoting import comment, table_line
from .elsewhere import Whole

NUMBER = re.compile(r"(?<![0-9])[0-9]+(?![0-9])")
AMBIGUOUS = "ambiguous"  # stands for true or false; a map is not read before somebody has decided

Options = tuple[tuple[str, Any], ...]
TURNED: Options = (("transpose", True),)
PERHAPS_TURNED: Options = (("transpose", AMBIGUOUS),)


@dataclass(frozen=True, slots=True)
class MapLine:
    """One line of a map: a name of the file, the names of the model, and the options beside them.

    Without targets the tensor is dropped. The names are patterns.
    """

    source: str
    targets: tuple[str, ...] = ()
    options: Options = ()

    def value(self) -> Any:
        """As it stands in the map."""
        if not self.targets:
            return None
        names: Any = self.targets[0] if len(self.targets) == 1 else list(self.targets)
        return {"to": names, **dict(self.options)} if self.options else names


def map_line(source: str, targets: Sequence[str] = (), options: Options = ()) -> MapLine:
    """A line about tensors of these very names."""
    return MapLine(escape(source), tuple(escape(name) for name in targets), options)


def joining(whole: Whole) -> list[MapLine]:
    """How the file's parts make up a tensor of the model."""
    turned = TURNED if whole.turned else ()
    if len(whole.parts) == 1:
        return [map_line(whole.parts[0], (whole.name,), turned)]
    axis = 1 - whole.axis if whole.turned else whole.axis  # parts are turned before they are joined, not after
    return [
        map_line(part, (whole.name,), (*turned, ("join", axis), ("place", place)))
        for place, part in enumerate(whole.parts)
    ]


def splitting(whole: Whole) -> MapLine:
    """How a tensor of the file is cut into the model's."""
    turned = TURNED if whole.turned else ()
    if len(whole.parts) == 1:
        return map_line(whole.name, whole.parts, turned)
    return map_line(whole.name, whole.parts, (*turned, ("split", whole.axis)))


def map_text(lines: Sequence[MapLine], names: Sequence[str], comments: Sequence[str] = ()) -> str:
    """The lines as a map for a file of these names, with what it does not say as comments at its end."""
    table = [text for one in _families(lines, names) for text in table_line(one.source, one.value(), "")]
    return "\n".join([*table, *(f"# {comment(said)}" for said in comments)]) + "\n"


def _families(found: Sequence[MapLine], names: Sequence[str]) -> Iterator[MapLine]:
    """Lines that differ in numbers alone, as one line, where that speaks of no other tensor of the file."""
    groups: dict[str, list[MapLine]] = {}
    for one in found:
        groups.setdefault(repr(_general(one)), []).append(one)
    for members in groups.values():
        family = _general(members[0])
        if len(members) < 2 or not family.targets or family.source.count(RUN) > MAX_PLACEHOLDERS:
            yield from members
            continue
        pattern = parse_pattern(family.source, "map")
        spoken_of = {escape(name) for name in names if pattern.match(name) is not None}
        yield from [family] if spoken_of == {one.source for one in members} else members


def _general(one: MapLine) -> MapLine:
    """The line with a placeholder for every number, where all its names have the same ones."""
    numbers = {tuple(NUMBER.findall(name)) for name in (one.source, *one.targets)}
    if len(numbers) > 1 or numbers == {()}:
        return one
    return MapLine(NUMBER.sub(RUN, one.source), tuple(NUMBER.sub(RUN, name) for name in one.targets), one.options)
