"""Which module of the candidate is which of the reference: by map, by name, by weights, by structure and order."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher

import numpy as np

from ..compare.pairs import Transform
from ..compare.storage import along_same_axes
from ..errors import SelectionError
from ..records import Record
from ..sites import PARAMETER_PHASES, Site
from ..traces import Trace
from ..verdict.noise import kind_of

UNMATCHED = "~"  # ends the name of a candidate's module that stands for none of the reference, where that is taken
_NOT_MODULES = frozenset({"input", "loss", "lossgrad"})
_SAME = 0.1  # of the norm: two outputs closer than this are taken for the same thing


@dataclass(frozen=True, slots=True)
class Names:
    """The candidate's module paths, each with the reference's, how they were matched, and what undoes other axes."""

    reference: Mapping[str, str]
    how: Mapping[str, str]
    ports: Mapping[tuple[str, str], str]
    axes: Mapping[tuple[str, str], Transform] = field(default_factory=dict)

    def renamed(self, candidate: Trace) -> Trace:
        """The candidate's trace under the reference's names, and with its parameters along the reference's axes."""
        if any(name != other for name, other in self.reference.items()) or self.ports:
            candidate = candidate.renamed(self.site)
        return along_same_axes(candidate, self.axes)

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


def match(
    reference: Trace, candidate: Trace, name_map: Mapping[str, str] | None, known: tuple[Iterable[str], Iterable[str]]
) -> Names:
    """Find the reference's module for every module of the candidate; `known` are all modules there are, of which
    some may not have run."""
    ours, theirs = _Modules(reference), _Modules(candidate)
    if name_map is not None:
        check_map(name_map, *known)
    found, how = _by_map(ours, theirs, name_map) if name_map is not None else _by_themselves(ours, theirs)
    for name in theirs.names:
        if name not in found:
            found[name] = name + UNMATCHED if name in ours.names else name
    ports: dict[tuple[str, str], str] = {}
    for name in how:
        parameters = _ports(ours, found[name], theirs, name)
        results = _results(ours.results.get(found[name], {}), theirs.results.get(name, {}))
        ports |= {(name, port): other for port, other in (parameters | results).items()}
    return Names(found, how, ports)


class _Modules:
    """What a trace knows of the modules of a model."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.outputs: dict[str, Record] = {}
        self.results: dict[str, dict[str, Record]] = {}  # all outputs of a module's first call, by port
        self.parameters: dict[str, dict[str, Record]] = {}
        names: dict[str, None] = {}
        for record in trace.records:
            site = record.site
            if site.step or site.phase in _NOT_MODULES:
                continue
            names.setdefault(site.name)
            if site.phase == "fwd" and not site.port.startswith("in."):
                self.outputs.setdefault(site.name, record)
                self.results.setdefault(site.name, {}).setdefault(site.port, record)
            elif site.phase == "weight":
                self.parameters.setdefault(site.name, {})[site.port] = record
        self.names = list(names)

    def weights(self, name: str) -> tuple[tuple[tuple[int, ...] | None, int], ...]:
        """What tells a module from others: its own parameters, whatever they are called."""
        return tuple(sorted((record.shape, self.checksum(record)) for record in self.parameters.get(name, {}).values()))

    def checksum(self, record: Record) -> int:
        if record.at is None:
            return 0
        found = self.trace.array(record)
        array = np.asarray(found, np.complex64 if found.dtype.kind == "c" else np.float32)
        return zlib.crc32(np.ascontiguousarray(array).tobytes())

    def key(self, name: str) -> tuple[str, tuple[int, ...] | None]:
        record = self.outputs[name]
        return kind_of(record.op), record.shape


def check_map(name_map: Mapping[str, str], ours: Iterable[str], theirs: Iterable[str]) -> None:
    """Refuse a map that names what is not there, or one thing twice."""
    for side, there, names in (("reference", ours, name_map.values()), ("candidate", theirs, name_map.keys())):
        there = list(there)
        for name in names:
            if name not in there:
                some = ", ".join(map(repr, [one for one in there if one][:8]))
                has = f"it has {some}, ..." if some else "it has no modules inside it"
                raise SelectionError(f"name_map: the {side} has no module {name!r}; {has}")
    twice = [name for name, count in Counter(name_map.values()).items() if count > 1]
    if twice:
        raise SelectionError(f"name_map: {twice[0]!r} is given to two modules of the candidate; give it to one")


def _by_map(
    ours: _Modules, theirs: _Modules, name_map: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:  # fmt: skip
    found = {"": "", **{name: other for name, other in name_map.items() if name in theirs.names}}
    return found, dict.fromkeys(found, "map")


def _by_themselves(ours: _Modules, theirs: _Modules) -> tuple[dict[str, str], dict[str, str]]:
    found: dict[str, str] = {}
    how: dict[str, str] = {}

    def add(pairs: Iterable[tuple[str, str]], why: str) -> None:
        for name, other in pairs:
            if name not in found and other not in found.values():
                found[name], how[name] = other, why

    add(((name, name) for name in theirs.names if name in ours.names), "name")
    add(_by_weights(ours, theirs, found), "weights")
    add(_by_order(ours, theirs, found), "order")
    add(_by_contents(ours, theirs, found), "structure")
    return found, how


def _by_weights(ours: _Modules, theirs: _Modules, found: Mapping[str, str]) -> list[tuple[str, str]]:
    """Modules with the very same parameters, in the order they run where there are several."""
    waiting: dict[object, list[str]] = {}
    for name in ours.names:
        if name not in found.values() and (weights := ours.weights(name)):
            waiting.setdefault(weights, []).append(name)
    pairs = []
    for name in theirs.names:
        if name not in found and (weights := theirs.weights(name)) and waiting.get(weights):
            pairs.append((name, waiting[weights].pop(0)))
    return pairs


def _by_order(ours: _Modules, theirs: _Modules, found: Mapping[str, str]) -> list[tuple[str, str]]:
    """Modules of one kind and shape at the same place of both sequences, whose outputs are about the same."""
    left = [name for name in ours.outputs if name not in found.values()]
    right = [name for name in theirs.outputs if name not in found]
    blocks = SequenceMatcher(
        None, [ours.key(name) for name in left], [theirs.key(name) for name in right], autojunk=False
    ).get_matching_blocks()
    pairs = [(right[j + n], left[i + n]) for i, j, size in blocks for n in range(size)]
    return [(name, other) for name, other in pairs if _alike(ours, other, theirs, name)]


def _alike(ours: _Modules, name: str, theirs: _Modules, other: str) -> bool:
    a, b = ours.outputs[name], theirs.outputs[other]
    if a.at is None or b.at is None:
        return False
    x, y = (np.asarray(t.trace.array(r), np.complex128) for t, r in ((ours, a), (theirs, b)))
    return bool(np.linalg.norm(x - y) <= _SAME * np.linalg.norm(x)) if x.shape == y.shape else False


def _by_contents(ours: _Modules, theirs: _Modules, found: Mapping[str, str]) -> list[tuple[str, str]]:
    """Containers that hold the same modules."""
    inside: dict[frozenset[str], str] = {}
    for name in sorted(ours.names, key=len):
        held = frozenset(other for other in found.values() if other.startswith(f"{name}."))
        if held:
            inside.setdefault(held, name)
    pairs = []
    for name in sorted(theirs.names, key=len):
        held = frozenset(other for one, other in found.items() if one.startswith(f"{name}."))
        if held in inside and name not in found:
            pairs.append((name, inside[held]))
    return pairs


def _ports(ours: _Modules, name: str, theirs: _Modules, other: str) -> dict[str, str]:
    """Parameters that are called differently: those with the very same numbers, or the only one of a shape on each
    side."""
    left, right = dict(ours.parameters.get(name, {})), dict(theirs.parameters.get(other, {}))
    for port in left.keys() & right.keys():
        del left[port], right[port]
    found: dict[str, str] = {}
    for key in (_by_numbers, _by_shape):
        for port, record in list(right.items()):
            same = [one for one in left if key(ours, left[one]) == key(theirs, record)]
            rivals = [one for one in right if key(theirs, right[one]) == key(theirs, record)]
            if len(same) == len(rivals) == 1:
                found[port] = same[0]
                del left[same[0]], right[port]
    return found


def _by_numbers(modules: _Modules, record: Record) -> object:
    return record.shape, modules.checksum(record)


def _by_shape(modules: _Modules, record: Record) -> object:
    return record.shape


def _results(ours: Mapping[str, Record], theirs: Mapping[str, Record]) -> dict[str, str]:
    """A module that returns one tensor here and several there, of which the first is that one."""
    for one, many, swap in ((ours, theirs, False), (theirs, ours, True)):
        if set(one) == {"out"} and "out.0" in many and many["out.0"].shape == one["out"].shape:
            return {"out": "out.0"} if swap else {"out.0": "out"}
    return {}
