"""What a trace knows of its model, arranged to be matched: calls of modules in order, and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from ...core.records import Record
from ...core.sites import Site
from ...core.traces import Trace
from ..conventions import family_of, role_of
from ..moments import Numbers, numbers_of

Dims = tuple[int, ...]
Key = tuple[str, int]  # a module's name and call
OUTSIDE = frozenset({"input", "loss", "lossgrad"})  # which no module has
Parameter = tuple[str, str]  # the owner's name and the port


@dataclass(slots=True)
class Run:
    """One call of a module. `before` are the runs that made what it read, as places in the list of their outline."""

    name: str
    call: int
    place: int = 0
    outputs: dict[str, Record] = field(default_factory=dict)
    inputs: dict[str, Record] = field(default_factory=dict)
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)
    holds: bool = False  # other modules run inside it
    op: str | None = None

    @property
    def family(self) -> str | None:
        return None if self.holds else family_of(self.op)

    @property
    def output(self) -> Record | None:
        """The first thing it returns."""
        return self.outputs[min(self.outputs)] if self.outputs else None


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter or buffer."""

    name: str
    port: str
    record: Record
    is_alias: bool = False  # a further name of a tied tensor

    @property
    def key(self) -> Parameter:
        return self.name, self.port

    @property
    def role(self) -> str:
        return role_of(self.port)


class Outline:
    """One trace: its runs in the order in which they return, and its weights in the candidate's."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        step = min((record.site.step for record in trace.records if record.site.phase == "fwd"), default=0)
        forward = [record for record in trace.records if record.site.phase == "fwd" and record.site.step == step]
        sample = min((site.site.sample for site in forward if site.site.sample is not None), default=None)
        self.runs: list[Run] = []
        self.by_key: dict[Key, Run] = {}
        for site in forward:
            if site.site.sample in (None, sample):
                self._add(site)
        self.has_graph = any("from" in site.details for site in forward)
        self._place(self._made_of(forward))
        first = min((record.site.step for record in trace.records if record.site.phase == "weight"), default=0)
        own = [record for record in trace.records if record.site.phase == "weight" and record.site.step == first]
        self.weights = [Weight(site.site.name, site.site.port, site) for site in own]
        for site in own:
            self.weights += [Weight(*alias.rpartition(".")[::2], site, is_alias=True) for alias in site.aliases]
        self.names = dict.fromkeys(record.site.name for record in trace.records if record.site.phase not in OUTSIDE)
        self.owned: dict[str, list[int]] = {}
        for number, weight in enumerate(self.weights):
            self.owned.setdefault(weight.name, []).append(number)

    def _add(self, record: Record) -> None:
        site = record.site
        key = site.name, site.call
        if key not in self.by_key:
            self.by_key[key] = Run(site.name, site.call)
            self.runs.append(self.by_key[key])
        run = self.by_key[key]
        if site.port.startswith("in."):
            run.inputs.setdefault(site.port, record)
        else:
            run.outputs.setdefault(site.port, record)
            run.op = run.op or record.op

    def _made_of(self, forward: Iterable[Record]) -> dict[Key, set[Key]]:
        """What each run reads, by recorded producers: of what another module was fed, who made that."""
        found: dict[Key, set[Key]] = {(run.name, run.call): set() for run in self.runs}
        fed = {record.site: record.producers or () for record in forward if is_input(record.site)}
        for record in forward:
            key = record.site.name, record.site.call
            waiting, seen = list(record.producers or ()), set[Site]()
            while waiting:
                producer = waiting.pop()
                other = producer.name, producer.call
                if producer in fed and producer not in seen:
                    seen.add(producer)
                    waiting.extend(fed[producer])
                elif producer.phase == "fwd" and key in found and other in found and other != key:
                    found[key].add(other)
        return found

    def _place(self, made_of: Mapping[Key, set[Key]]) -> None:
        """In the order in which they return, as far as what they read was made before; and what reads what."""
        returning = {(run.name, run.call): n for n, run in enumerate(self.runs)}
        for number, record in enumerate(self.trace.records):
            site = record.site
            if site.phase == "fwd" and not site.port.startswith("in.") and (site.name, site.call) in returning:
                returning[site.name, site.call] = number
        order = _in_causal_order(self._returned(made_of), returning)
        self.runs = [self.by_key[key] for key in order]
        around = {name for run in self.runs for name in _around(run.name)}
        for place, run in enumerate(self.runs):
            run.place, run.holds = place, run.name in around
        previous: Run | None = None
        for run in self.runs:
            if self.has_graph:
                others = [self.by_key[key] for key in made_of[run.name, run.call]]
            else:
                others = [] if previous is None or run.holds else [previous]
                previous = previous if run.holds else run
            for other in others:
                run.before.add(other.place)
                other.after.add(run.place)

    def _returned(self, made_of: Mapping[Key, set[Key]]) -> dict[Key, set[Key]]:
        """What has to have returned before each run does: what it reads, and what runs inside it."""
        found = {key: set(others) for key, others in made_of.items()}
        for name, call in made_of:
            around = next((key for one in _around(name) if (key := (one, call)) in found), None)
            if around is not None and around not in found[name, call]:
                found[around].add((name, call))
        return found

    @cached_property
    def containers(self) -> dict[int, frozenset[int]]:
        """The runs that hold others, with the places of what they hold in their own call."""
        held: dict[int, set[int]] = {run.place: set() for run in self.runs if run.holds}
        for run in self.runs:
            for name in () if run.holds else _around(run.name):
                around = self.by_key.get((name, run.call)) or self.by_key.get((name, 0))
                if around is not None and around.place in held:
                    held[around.place].add(run.place)
        return {place: frozenset(inside) for place, inside in held.items()}

    @cached_property
    def results(self) -> list[Numbers | None]:
        """The numbers of what each run returns, their order included."""
        return [numbers_of(self.trace, run.output, ordered=True) for run in self.runs]

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        """Which runs return the very same numbers in one order: views, copies, what only hands something on."""
        found: dict[object, int] = {}
        return np.array(
            [found.setdefault(n if one is None else one, len(found)) for n, one in enumerate(self.results)], np.int64
        )

    @cached_property
    def values(self) -> list[Numbers | None]:
        """The numbers of each weight."""
        return [numbers_of(self.trace, weight.record) for weight in self.weights]


def _around(name: str) -> Iterator[str]:
    """The modules around one, the innermost first and the model last."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _in_causal_order(made_of: Mapping[Key, set[Key]], returning: Mapping[Key, int]) -> list[Key]:
    """Every run after what it reads, and as recorded where that leaves a choice."""
    readers: dict[Key, list[Key]] = {}
    waits = {key: len(others) for key, others in made_of.items()}
    for key, others in made_of.items():
        for other in others:
            readers.setdefault(other, []).append(key)
    ready = [(returning[key], key) for key, count in waits.items() if not count]
    heapify(ready)
    order: list[Key] = []
    while ready:
        _, key = heappop(ready)
        order.append(key)
        for reader in readers.get(key, ()):
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, (returning[reader], reader))
    return [*order, *sorted(made_of.keys() - set(order), key=returning.__getitem__)]


def is_input(site: Site) -> bool:
    """Whether it is what a module was fed."""
    return site.phase == "fwd" and site.port.startswith("in.")


def dims_of(record: Record | None) -> Dims:
    """The lengths of a tensor's axes that are longer than one, in order of size: what no layout changes."""
    return () if record is None or record.shape is None else tuple(sorted(dim for dim in record.shape if dim != 1))
