"""Whether a map fits two traces: every line has something to do, and no tensor stands for two."""

from __future__ import annotations

from collections.abc import Container, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ...core.sites import Site
from ...errors import FormatError
from .lines import Line, Rule, Target
from .patterns import Pattern

if TYPE_CHECKING:
    from .lines import Mapping

_SHOWN = 6  # ports that a message lists


def check_map(mapping: Mapping, reference: Iterable[Site], candidate: Iterable[Site]) -> None:
    """Raise FormatError for the first line, in the order of the file, that does not fit."""
    of_reference, of_candidate = _tensors(reference), _tensors(candidate)
    rules = {site: rule for site in of_reference if (rule := mapping.find(site)) is not None}
    won: dict[int, dict[Site, Rule]] = {}
    for site, rule in rules.items():
        won.setdefault(id(rule.line), {})[site] = rule
    by_name = _ports(of_candidate)
    lists = _lists(of_reference), _lists(of_candidate)
    for line in mapping.lines:
        if id(line) not in won and _names_lists(line, lists, by_name):
            continue
        if id(line) not in won:
            raise _idle(line, of_reference, "reference", mapping)
        _check_targets(line, won[id(line)], by_name, lists[1])
    _check_sources(rules, of_candidate)
    named: dict[str, list[Site]] = {}
    for site in of_candidate:
        named.setdefault(site.name, []).append(site)
    for line in mapping.candidate_ignore:
        asked = named.get(line.reference.literals[0], ()) if line.reference.exact else of_candidate
        if not any(_takes(line, site) for site in asked):
            raise _idle(line, of_candidate, "candidate", mapping)


def _tensors(sites: Iterable[Site]) -> dict[Site, None]:
    """The sites without their step, call and sample, of which a map knows nothing."""
    return dict.fromkeys(Site(0, site.phase, site.name, site.port) for site in sites)


def _ports(sites: Iterable[Site]) -> dict[str, list[str]]:
    """The ports of every name."""
    found: dict[str, dict[str, None]] = {}
    for site in sites:
        found.setdefault(site.name, {})[site.port] = None
    return {name: list(ports) for name, ports in found.items()}


def _lists(sites: Iterable[Site]) -> set[str]:
    """The names that have nothing recorded themselves, only below them: lists of modules, which never run."""
    names = {site.name for site in sites}
    around: set[str] = set()
    for name in names:
        while (name := name.rpartition(".")[0]) and name not in around:
            around.add(name)
    return around - names


def _names_lists(line: Line, lists: tuple[set[str], set[str]], by_name: dict[str, list[str]]) -> bool:
    """Whether a line says no more than which lists of modules belong together. There is nothing to compare of them, and
    what is below them has lines of its own."""
    if len(line.candidates) != 1 or line != Line(line.place, line.reference, line.candidates):
        return False
    names = lists[0] & {line.reference.literals[0]} if line.reference.exact else lists[0]
    found = [captures for name in sorted(names) if (captures := line.reference.match(name)) is not None]
    targets = [line.candidates[0].fill(captures) for captures in found]
    if targets and not any(target in lists[1] or target in by_name for target in targets):
        raise _nothing_named(line, line.candidates[0], targets[0], (*by_name, *lists[1]))
    return bool(targets)


def _takes(line: Line, site: Site) -> bool:
    named = line.takes_phase(site.phase) and line.reference.match(site.name) is not None
    return named and line.rename_port(site.port) is not None


def _idle(line: Line, sites: Iterable[Site], side: str, mapping: Mapping) -> FormatError:
    """Why a line has nothing to do."""
    named = [site for site in sites if line.reference.match(site.name) is not None]
    if not named:
        return FormatError(f"{line.place}: the {side} has no such name; {_advice(line, sites, side)}")
    taken = [site for site in named if _takes(line, site)]
    if not taken:
        have = ", ".join(f"{site.phase} {site.port}" for site in named[:_SHOWN])
        more = ", ..." if len(named) > _SHOWN else ""
        return FormatError(
            f"{line.place}: {named[0].name!r} has none of the ports or phases asked for but {have}{more}; "
            "correct 'port' or 'phase'"
        )
    first = mapping.find(taken[0])
    where = "another line" if first is None else first.line.place
    return FormatError(f"{line.place}: it is never used, {where} comes before it; remove or reorder one of the two")


def _advice(line: Line, sites: Iterable[Site], side: str) -> str:
    for site in sites:
        if line.reference.match(f"{site.name}.{site.port}") is not None:
            return f"{site.name!r} is a name and {site.port!r} its port, so write the name and 'port: {site.port}'"
    return _nearest(line.reference.text, (site.name for site in sites), side)


def _nearest(name: str, names: Iterable[str], side: str) -> str:
    near = get_close_matches(name, dict.fromkeys(names), n=1)
    meant = f"write {near[0]!r} if you mean that" if near else "correct it"
    return f"{meant}, `firstdrift show` lists the names of the {side}"


def _nothing_named(line: Line, pattern: Pattern, name: str, names: Iterable[str]) -> FormatError:
    asked = f"{pattern.text!r}" if pattern.exact else f"{pattern.text!r} ({name!r}, say)"
    return FormatError(f"{line.place}: the candidate has nothing named {asked}; {_nearest(name, names, 'candidate')}")


def _check_targets(line: Line, won: dict[Site, Rule], by_name: dict[str, list[str]], lists: set[str]) -> None:
    """What stands on the right has to exist: one name that does is enough for a pattern."""
    for number, pattern in enumerate(line.candidates):
        targets = [(site, rule.targets[number]) for site, rule in won.items()]
        if not any(target.name in by_name or target.name in lists for _, target in targets):
            raise _nothing_named(line, pattern, targets[0][1].name, by_name)
        renamed = [(site, target) for site, target in targets if target.name in by_name and target.port != site.port]
        missing = next((target for _, target in renamed if target.port not in by_name[target.name]), None)
        if renamed and missing and not any(target.port in by_name[target.name] for _, target in renamed):
            have = ", ".join(by_name[missing.name][:_SHOWN])
            raise FormatError(
                f"{line.place}: the candidate's {missing.name!r} has no port {missing.port!r} but {have}; "
                "correct 'port'"
            )


def _check_sources(rules: dict[Site, Rule], there: Container[Site]) -> None:
    """One tensor of the candidate stands for one site, unless parts of it do or the map says that it is shared."""
    sources: dict[tuple[str, Target], tuple[Site, Rule]] = {}
    for site, rule in rules.items():
        for target in rule.targets if rule.named else ():
            other, before = sources.setdefault((site.phase, target), (site, rule))
            if other == site or Site(0, site.phase, target.name, target.port) not in there:
                continue
            if (rule.line.slices and before.line.slices) or (rule.line.shared and before.line.shared):
                continue
            raise FormatError(
                f"{rule.line.place}: the candidate's {target.name}:{target.port} would stand for both "
                f"{site.name}:{site.port} and, by {before.line.place}, {other.name}:{other.port}; "
                "give each a 'slice' of it, or write 'shared: true' in both"
            )
