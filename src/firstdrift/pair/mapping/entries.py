"""What an alignment found for each name of the reference, in as few lines as say it fully; and families, lines for
names that differ in their numbers alone, and whose candidates differ in the same numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from ..pairs import Alignment, Transform
from .lines import Mapping
from .patterns import ANYTHING, MAX_PLACEHOLDERS, RUN, Pattern, escape, parse_pattern

_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Part:
    """One line to be written: candidate names, and which ports and phase of the reference's name it speaks of."""

    names: tuple[str, ...]
    concatenate: int | None = None
    ports: tuple[tuple[str, str], ...] = ()  # patterns
    phase: str | None = None
    shared: bool = False
    steps: tuple[Transform, ...] = ()

    def renamed(self, rename: Callable[[str], str]) -> Part:
        """The same with other names."""
        return replace(self, names=tuple(map(rename, self.names)))

    def value(self) -> Any:
        """As it stands in a map; the names have to be patterns."""
        names = self.names[0] if len(self.names) == 1 else list(self.names)
        said: dict[str, Any] = {"candidate": names}
        if self.concatenate is not None:
            said["concatenate"] = self.concatenate
        if self.phase is not None:
            said["phase"] = self.phase
        if self.ports:
            said["port"] = dict(self.ports)
        if self.shared and not any(step.kind == "slice" for step in self.steps):
            said["shared"] = True
        if self.steps:
            said["steps"] = [_step(step) for step in self.steps]
        return names if len(said) == 1 else said


@dataclass(frozen=True, slots=True)
class Entry:
    """All parts of one name, how it was matched, and whether some of its ports or phases are left to other lines."""

    how: str
    parts: tuple[Part, ...]
    restricted: bool


class _Cell(NamedTuple):
    """What one tensor of the reference was paired with."""

    names: tuple[str, ...]
    port: str
    concatenate: int | None
    how: str
    shared: bool = False
    steps: tuple[Transform, ...] = ()

    @property
    def target(self) -> tuple[tuple[str, ...], int | None, tuple[Transform, ...]]:
        return self.names, self.concatenate, self.steps


_Cells = dict[tuple[str, str], _Cell]  # by the phase and port of the reference


def entries_of(alignment: Alignment, mapping: Mapping) -> dict[str, Entry]:
    """An entry for every name with a pair that `mapping` says nothing about."""
    cells: dict[str, _Cells] = {}
    kept = set()
    for pair in alignment.pairs:
        if not pair.candidate:
            continue
        if mapping.find(pair.site) is not None:
            kept.add(pair.site.name)
            continue
        names = tuple(dict.fromkeys(record.site.name for record in pair.candidate))
        axis = (pair.concatenate or 0) if len(names) > 1 else None
        steps = tuple(step for step in pair.candidate_steps if step.kind != "scale") if pair.sure is not None else ()
        cell = _Cell(names, pair.candidate[0].site.port, axis, pair.matched, steps=steps)
        cells.setdefault(pair.site.name, {}).setdefault((pair.site.phase, pair.site.port), cell)
    _mark_shared(cells)
    unpaired = _Unpaired(alignment)
    return {name: _entry(own, name in kept or unpaired.would_pair(name, own)) for name, own in cells.items()}


class _Unpaired:
    """Tensors of the reference without a counterpart: a line for the others of their name must not find them one."""

    def __init__(self, alignment: Alignment) -> None:
        self._reference: dict[str, set[tuple[str, str]]] = {}
        for item in (*alignment.reference_only, *alignment.ignored):
            self._reference.setdefault(item.site.name, set()).add((item.site.phase, item.site.port))
        candidate = [record.site for pair in alignment.pairs for record in pair.candidate]
        candidate += [item.site for item in alignment.candidate_only]
        self._candidate = {(site.phase, site.name, site.port) for site in candidate}

    def would_pair(self, name: str, cells: _Cells) -> bool:
        """Whether one line for the whole name would say too much."""
        renamed = {port: cell.port for (_, port), cell in cells.items()}
        names = {other for cell in cells.values() for other in cell.names}
        left = self._reference.get(name, set()) - cells.keys()
        return any(
            (phase, other, renamed.get(port, port)) in self._candidate for phase, port in left for other in names
        )


def _mark_shared(cells: dict[str, _Cells]) -> None:
    """Note which tensors of the candidate stand for several of the reference, as tied ones do."""
    users: dict[tuple[str, str, str], list[tuple[_Cells, tuple[str, str]]]] = {}
    for own in cells.values():
        for (phase, port), cell in own.items():
            for name in cell.names:
                users.setdefault((phase, name, cell.port), []).append((own, (phase, port)))
    for using in users.values():
        for own, key in using if len(using) > 1 else ():
            own[key] = own[key]._replace(shared=True)


def _entry(cells: _Cells, by_phase: bool) -> Entry:
    how = next(iter(cells.values())).how
    by_port = {(port, cell.target, cell.port) for (_, port), cell in cells.items()}
    if by_phase or len({port for port, _, _ in by_port}) < len(by_port):  # one port goes two ways
        groups = _groups(cells, lambda phase, cell: (phase, cell.target))
        return Entry(how, tuple(_part(group, next(iter(group))[0]) for group in groups), True)
    groups = _groups(cells, lambda _, cell: cell.target)
    if len(groups) > 1:
        return Entry(how, tuple(_part(group) for group in groups), True)
    whole = _part(cells)
    others = ((ANYTHING, ANYTHING),)
    moved = tuple(rename for rename in whole.ports if rename[0] != rename[1])
    return Entry(how, (replace(whole, ports=moved + others if moved else ()),), False)


def _groups(cells: _Cells, key: Callable[[str, _Cell], Any]) -> list[_Cells]:
    groups: dict[Any, _Cells] = {}
    for (phase, port), cell in cells.items():
        groups.setdefault(key(phase, cell), {})[phase, port] = cell
    return list(groups.values())


def _part(cells: _Cells, phase: str | None = None) -> Part:
    """One line for tensors that go to the same names."""
    first = next(iter(cells.values()))
    ports = tuple(dict.fromkeys((escape(port), escape(cell.port)) for (_, port), cell in cells.items()))
    shared = any(cell.shared for cell in cells.values())
    return Part(first.names, first.concatenate, ports, phase, shared, first.steps)


def _step(step: Transform) -> dict[str, Any]:
    """A step as an item of a map's list."""
    match step.kind:
        case "permute":
            return {"permute": list(step.axes)}
        case "reshape":
            return {"reshape": list(step.shape)}
        case "slice":
            return {"slice": {"axis": step.axes[0], "start": step.start, "stop": step.stop}}
    return {"transpose": True}


@dataclass(frozen=True, slots=True)
class Family:
    """One line with placeholders that stands for several; the names of its parts are patterns."""

    how: str
    reference: Pattern
    parts: tuple[Part, ...]

    def covers(self, name: str, entry: Entry) -> bool:
        """Whether this line says of a name just what its own would."""
        return self.how == entry.how and self.expand(name) == entry.parts

    def expand(self, name: str) -> tuple[Part, ...] | None:
        """What the line says of a name; None when it does not speak of it."""
        captures = self.reference.match(name)
        if captures is None:
            return None
        return tuple(part.renamed(lambda text: _pattern(text).fill(captures)) for part in self.parts)


@lru_cache(maxsize=1024)
def _pattern(text: str) -> Pattern:
    return parse_pattern(text, "map")


def find_families(entries: dict[str, Entry], others: Iterable[str], taken: Collection[str]) -> list[Family]:
    """The families of at least two names, in the order of their first one.

    `others` are reference names without an entry: a family may speak of one only when that changes nothing, which is
    so when no name in `taken`, the candidate's, comes out. A name of which it says something wrong has a line of its
    own, and that wins; unless that line leaves some of its ports to others.
    """
    members: dict[Family, int] = {}
    for name, entry in entries.items():
        family = _family(name, entry)
        if family is not None:
            members[family] = members.get(family, 0) + 1
    others = list(others)
    return [family for family, count in members.items() if count > 1 and _harmless(family, entries, others, taken)]


def _harmless(family: Family, entries: dict[str, Entry], others: list[str], taken: Collection[str]) -> bool:
    if any(entry.restricted and family.expand(name) not in (None, entry.parts) for name, entry in entries.items()):
        return False
    said = (part for name in others for part in family.expand(name) or ())
    return not any(name in taken for part in said for name in part.names)


def _family(name: str, entry: Entry) -> Family | None:
    """The widest family a name could belong to."""
    numbers = _NUMBER.findall(name)
    common = set(range(len(numbers)))
    for other in (name for part in entry.parts for name in part.names):
        common &= _shared_numbers(numbers, _NUMBER.findall(other))
    kept = sorted(common)[:MAX_PLACEHOLDERS]
    if not kept:
        return None
    values = [numbers[i] for i in kept]
    reference = parse_pattern(_with_placeholders(name, set(kept)), "map")
    parts = tuple(part.renamed(lambda text: _with_placeholders(text, _positions(text, values))) for part in entry.parts)
    return Family(entry.how, reference, parts)


def _shared_numbers(reference: list[str], candidate: list[str]) -> set[int]:
    """Which of the reference's numbers come, in their order, among the candidate's."""
    from difflib import SequenceMatcher  # here, because a comparison that writes no map does not need it

    blocks = SequenceMatcher(None, reference, candidate, autojunk=False).get_matching_blocks()
    return {block.a + i for block in blocks for i in range(block.size)}


def _positions(name: str, values: list[str]) -> set[int]:
    """Where the numbers of a name are these values, in order; each is known to be there."""
    found: set[int] = set()
    for position, number in enumerate(_NUMBER.findall(name)):
        if len(found) < len(values) and number == values[len(found)]:
            found.add(position)
    return found


def _with_placeholders(name: str, positions: set[int]) -> str:
    """The name as a pattern, with a placeholder for each of these numbers."""
    pieces, end = [], 0
    for position, number in enumerate(_NUMBER.finditer(name)):
        if position in positions:
            pieces += [escape(name[end : number.start()]), RUN]
            end = number.end()
    return "".join([*pieces, escape(name[end:])])
