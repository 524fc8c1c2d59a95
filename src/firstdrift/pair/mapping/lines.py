"""The lines of a map, and what they say about one site."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ...core.sites import Site
from ..pairs import Tolerance, Transform
from .patterns import Pattern


class Target(NamedTuple):
    """A tensor of the candidate, in the step, phase, call and sample of the site that asks."""

    name: str
    port: str


class PortRule(NamedTuple):
    """A port of the reference and what the candidate calls it."""

    reference: Pattern
    candidate: Pattern


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a map. Without `candidates` the counterpart bears the name of its site."""

    place: str
    reference: Pattern
    candidates: tuple[Pattern, ...] = ()
    ports: tuple[PortRule, ...] = ()
    phases: tuple[str, ...] = ()
    transforms: tuple[Transform, ...] = ()
    concatenate: int | None = None
    tolerance: Tolerance | None = None
    ignore: str | None = None
    shared: bool = False

    @property
    def slices(self) -> bool:
        """Whether it takes a part of the candidate's tensor, and so leaves the rest to others."""
        return any(step.kind == "slice" for step in self.transforms)

    def takes_phase(self, phase: str) -> bool:
        """Whether it speaks of sites of this phase."""
        return not self.phases or any(fnmatchcase(phase, glob) for glob in self.phases)

    def rename_port(self, port: str) -> tuple[int, str] | None:
        """How wide the port rule is that takes this port, and the candidate's port; None when none takes it."""
        if not self.ports:
            return 3, port
        found = [
            (rule.reference.rank, rule.candidate.fill(captures))
            for rule in self.ports
            if (captures := rule.reference.match(port)) is not None
        ]
        return min(found, key=lambda item: item[0], default=None)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a map says about one site; `line` says the rest of it.

    Its transforms bring the candidate's tensor (the targets joined along the axis `concatenate`) into the
    reference's layout. `named` is false when the line leaves the candidate's name to the usual matching.
    """

    line: Line
    targets: tuple[Target, ...]
    named: bool


class ByName:
    """Lines by the plain name they speak of, and those with placeholders: a long map is not searched line by line."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.exact: dict[str, list[Line]] = {}
        self.patterns: list[Line] = []
        for line in lines:
            same = self.exact.setdefault(line.reference.literals[0], []) if line.reference.exact else self.patterns
            same.append(line)

    def winner(self, site: Site) -> Rule | None:
        """What the most specific line for a site says."""
        return _winner(self.exact.get(site.name, ()), site) or _winner(self.patterns, site)


@dataclass(frozen=True, slots=True)
class Mapping:
    """A map: its lines in the order of the file, the candidate's names that it leaves out, and the settings that are
    `meant` to differ, with the reason.

    `written` and `written_ignore` hold both tables as they were read, so that a map can be written again.
    """

    place: str
    lines: tuple[Line, ...]
    candidate_ignore: tuple[Line, ...] = ()
    written: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    written_ignore: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    meant: dict[str, str] = field(default_factory=dict)
    _found: dict[tuple[str, str, str], Rule | None] = field(default_factory=dict, init=False, compare=False, repr=False)
    _by_name: ByName = field(init=False, compare=False, repr=False)
    _ignored: ByName = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", ByName(self.lines))
        object.__setattr__(self, "_ignored", ByName(self.candidate_ignore))

    def find(self, site: Site) -> Rule | None:
        """What the map says about a site of the reference; of several lines the most specific one.

        A plain name before `{}` before `*`, and of patterns the one with more text of its own, whatever their ports;
        then, by the same order, its port before any port; then a given phase before any; then the earlier line.
        """
        key = (site.phase, site.name, site.port)
        if key not in self._found:  # the same tensor comes again with every step, call and sample
            self._found[key] = self._by_name.winner(site)
        return self._found[key]

    def ignores_candidate(self, site: Site) -> str | None:
        """Why the map leaves this site of the candidate out; None when it does not."""
        rule = self._ignored.winner(site)
        return None if rule is None else rule.line.ignore

    def dropped(self, sites: Iterable[Site]) -> list[str]:
        """What lines of a name leave to no line: ports and phases that they do not speak of, a sentence a line."""
        named: dict[int, tuple[Line, list[Site]]] = {}
        for site in sites:
            partly = (one for one in self.lines if one.candidates and (one.ports or one.phases))
            line = next((one for one in partly if one.reference.match(site.name) is not None), None)
            if line is not None and self.find(site) is None:
                named.setdefault(id(line), (line, []))[1].append(site)
        return [_said_dropped(line, left) for line, left in named.values()]

    def check(self, reference: Iterable[Site], candidate: Iterable[Site]) -> None:
        """Refuse a map that does not fit the two traces: unknown names, idle lines, two sources for one target."""
        from .map_check import check_map  # here, because it needs the types of this module

        check_map(self, reference, candidate)


def _said_dropped(line: Line, left: list[Site]) -> str:
    what = list(dict.fromkeys(f"{site.phase} {site.port}" for site in left))
    some = ", ".join(what[:3]) + (", ..." if len(what) > 3 else "")
    return f"{line.place}: it leaves out {some} of {left[0].name!r}; add a line for these, or '*' to its ports"


def _winner(lines: Iterable[Line], site: Site) -> Rule | None:
    best: tuple[tuple[int, int, int, bool], Rule] | None = None
    for line in lines:
        captures = line.reference.match(site.name) if line.takes_phase(site.phase) else None
        port = None if captures is None else line.rename_port(site.port)
        if captures is None or port is None:
            continue
        width = (line.reference.rank, -sum(map(len, line.reference.literals)), port[0], not line.phases)
        if best is None or width < best[0]:
            names = [pattern.fill(captures) for pattern in line.candidates] or [site.name]
            targets = () if line.ignore is not None else tuple(Target(name, port[1]) for name in names)
            best = width, Rule(line, targets, bool(line.candidates))
    return None if best is None else best[1]
