"""Which module of the candidate is which of the reference, as one name for both; the finding itself is in `pair/`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..core.sites import PARAMETER_PHASES, Site
from ..core.traces import Trace
from ..errors import SelectionError
from ..pair.same_weights import SameWeights
from ..pair.structure.correspondence import correspond
from ..pair.structure.finding import lying_names
from ..pair.structure.outline import Outline
from ..pair.structure.owned_weights import weights_of_owners
from ..pair.structure.translated import port_of

UNMATCHED = "~"  # ends the name of a candidate's module that stands for none of the reference, where that is taken
_NOT_MODULES = frozenset({"input", "loss", "lossgrad"})


@dataclass(frozen=True, slots=True)
class Names:
    """The candidate's module paths, each with the reference's, and how they were matched."""

    reference: Mapping[str, str]
    how: Mapping[str, str]
    ports: Mapping[tuple[str, str], str]
    refuted: frozenset[str] = frozenset()  # the reference's, whose one likely counterpart has other numbers

    def renamed(self, candidate: Trace) -> Trace:
        """The candidate's trace under the reference's names."""
        if any(name != other for name, other in self.reference.items()) or self.ports:
            candidate = candidate.renamed(self.site)
        return candidate

    def site(self, site: Site) -> Site:
        """Where the reference has what the candidate has at a site."""
        if site.phase in _NOT_MODULES:
            return site
        name = self._name(site.name)
        if site.phase in PARAMETER_PHASES or site.phase == "optim":
            parameter, dot, rest = site.port.partition(".")
            return site._replace(name=name, port=self.ports.get((site.name, parameter), parameter) + dot + rest)
        return site._replace(name=name, port=self.ports.get((site.name, site.port), site.port))

    def _name(self, name: str) -> str:
        if name in self.reference:
            return self.reference[name]
        owner, _, last = name.rpartition(".")  # a tap, inside a module
        return f"{self.reference[owner]}.{last}".lstrip(".") if owner in self.reference else name


@np.errstate(all="ignore")  # any bits may be on record: what is not finite is counted
def match(
    reference: Trace, candidate: Trace, name_map: Mapping[str, str] | None, known: tuple[Iterable[str], Iterable[str]]
) -> Names:
    """Find the reference's module for every module of the candidate; `known` are all modules there are, of which
    some may not have run. `name_map` gives the reference's name of each of the candidate's: the other way round than a
    map file, where the reference's stand first."""
    of_reference, of_candidate = Outline(reference), Outline(candidate)
    refuted = frozenset[str]()
    if name_map is not None:
        check_map(name_map, *known)
        found = {"": "", **{name: other for name, other in name_map.items() if name in of_candidate.names}}
        how = dict.fromkeys(found, "map")
    else:
        found, how, refuted = _by_themselves(of_reference, of_candidate)
    for name in of_candidate.names:
        if name not in found:
            found[name] = name + UNMATCHED if name in of_reference.names else name
    return Names(found, how, _ports(of_reference, of_candidate, {found[name]: name for name in how}), refuted=refuted)


def check_map(name_map: Mapping[str, str], reference: Iterable[str], candidate: Iterable[str]) -> None:
    """Refuse a map that names what is not there, or one thing twice."""
    for side, there, names in (("reference", reference, name_map.values()), ("candidate", candidate, name_map.keys())):
        there = list(there)
        for name in names:
            if name not in there:
                some = ", ".join(map(repr, [one for one in there if one][:8]))
                has = f"it has {some}, ..." if some else "it has no modules inside it"
                raise SelectionError(f"name_map: the {side} has no module {name!r}; {has}")
    twice = [name for name, count in Counter(name_map.values()).items() if count > 1]
    if twice:
        raise SelectionError(f"name_map: {twice[0]!r} is given to two modules of the candidate; give it to one")


def _by_themselves(reference: Outline, candidate: Outline) -> tuple[dict[str, str], dict[str, str], frozenset[str]]:
    """The candidate's modules with the reference's: those of one name, and what evidence tells of all others; and
    those of the reference that it speaks against."""
    equal = {name: name for name in candidate.names if name in reference.names}
    if len(equal) == len(reference.names) == len(candidate.names):
        return equal, dict.fromkeys(equal, "name"), frozenset()
    told = correspond(reference, candidate)
    unnamed = correspond(reference, candidate, names=False)
    lying = lying_names(equal, unnamed)
    told = unnamed if lying else told
    found = {name: name for name in equal if name not in lying}
    how = dict.fromkeys(found, "name")
    for a, one in told.runs.items():
        name, other = reference.runs[a].name, candidate.runs[one.to].name
        if other not in found and name not in found.values():
            found[other], how[other] = name, one.how
    for (name, _), ((other, _), _) in told.by_parameter.items():  # of modules that did not run
        if other not in found and name not in found.values():
            found[other], how[other] = name, "weights"
    return found, how, told.refuted - set(found.values())


def _ports(reference: Outline, candidate: Outline, names: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """The reference's name of every parameter and result that the candidate calls otherwise."""
    found: dict[tuple[str, str], str] = {}
    for a, (b, _, _) in weights_of_owners(reference, candidate, SameWeights(), names).items():
        one, other = reference.weights[a], candidate.weights[b]
        if names.get(one.name) == other.name:
            found[other.name, other.port] = one.port
    for run in reference.runs:
        counterpart = candidate.by_key.get((names[run.name], run.call)) if run.name in names else None
        if counterpart is None:
            continue
        for port in run.outputs:
            called = port_of(run, counterpart, port)
            if called is not None and called != port:
                found.setdefault((counterpart.name, called), port)
    return found
