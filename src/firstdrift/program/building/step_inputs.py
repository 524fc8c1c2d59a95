"""What each operation of a step reads, from what a trace says: inputs of modules, producers, or the order of lines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from ...core.records import Record
from ...core.sites import Site
from ...core.traces import Trace
from ..calls import NotReplayableError, Type

Call_ = tuple[str, int, int | None]  # a module's name, its call and its sample


class StepInputs:
    """The records of one step, `there` those that have values, and its `weights` by module and port."""

    def __init__(self, trace: Trace, records: Sequence[Record], number: int) -> None:
        self.trace, self.records, self.number = trace, records, number
        self.there = {record.site: record for record in records if record.at is not None}
        self.weights = _weights(trace, number)
        self._graph = any("from" in record.details for record in records)
        self._entered, self._before = _entered(records), _before(records)

    def reads(self, record: Record, *, is_known: bool = True) -> list[Site]:
        """Its module's inputs, else its producers, else what came before it; nothing where that is not on record.

        Of one that is not known its producers are better: of a container, they are what its last child made.
        """
        site, producers = record.site, record.producers
        between = site.port.startswith("in.")
        own = [] if between else self._entered.get((site.name, site.call, site.sample), [])
        if own and (is_known or producers is None):
            found = own
        elif producers is not None:
            found = [producer for producer in producers if producer.phase not in ("weight", "weight_after")]
        else:
            found = [] if self._graph or site.phase != "fwd" or between else self._before[site]
        for one in found:
            self.type(one)
        return list(found)

    def weights_of(self, record: Record) -> list[tuple[str, Site]]:
        """The weights that an operation reads, by port: those among its producers, else its module's own."""
        if record.site.port.startswith("in."):
            return []
        said = [one for one in record.producers or () if one.phase == "weight"]
        if not said:
            return list(self.weights.get(record.site.name, {}).items())
        known = ((one.port, self.weights.get(one.name, {}).get(one.port)) for one in said)
        return [(port, site) for port, site in known if site is not None]

    def chain(self, record: Record) -> list[Site]:
        """The outputs that came before one, in order."""
        sites = list(self._before)
        before = sites[: sites.index(record.site)] if record.site in self._before else sites
        return [site for site in before if site.sample == record.site.sample]

    def type(self, site: Site) -> Type:
        """What is recorded of a tensor."""
        if site not in self.trace:
            raise NotReplayableError(f"{site}, which it was computed from, is not in the trace")
        record = self.trace[site]
        if record.at is None or record.dtype is None or record.shape is None:
            raise NotReplayableError(f"{site}, which it was computed from, was recorded without its values")
        return Type(record.dtype, record.shape)


def _weights(trace: Trace, step: int) -> dict[str, dict[str, Site]]:
    """By module and port, where a step's parameters stand: its own, or what the last step before it left."""
    found: dict[tuple[str, str], tuple[tuple[int, bool], Site]] = {}
    for record in trace.records:
        site = record.site
        if site.phase not in ("weight", "weight_after") or record.at is None:
            continue
        after = site.phase == "weight_after"
        age = site.step + after, not after
        if age[0] > step:
            continue
        for name, port in [(site.name, site.port), *(alias.rpartition(".")[::2] for alias in record.aliases)]:
            if (name, port) not in found or found[name, port][0] < age:
                found[name, port] = age, site
    modules: dict[str, dict[str, Site]] = {}
    for (name, port), (_, site) in found.items():
        modules.setdefault(name, {})[port] = site
    return modules


def _entered(records: Sequence[Record]) -> dict[Call_, list[Site]]:
    """What goes into each call of a module, in the order of its arguments."""
    found: dict[Call_, list[Site]] = defaultdict(list)
    for record in records:
        site = record.site
        if site.phase == "fwd" and site.port.startswith("in.") and record.at is not None:
            found[site.name, site.call, site.sample].append(site)
    for sites in found.values():
        sites.sort(key=lambda site: [(part.isdecimal(), part.zfill(9)) for part in re.split(r"\W", site.port)])
    return found


def _before(records: Sequence[Record]) -> dict[Site, list[Site]]:
    """In a chain, what came before each output: the output before it, or what the model was fed."""
    fed: dict[int | None, list[Site]] = defaultdict(list)
    last: dict[int | None, list[Site]] = {}
    found: dict[Site, list[Site]] = {}
    for record in records:
        site = record.site
        if record.at is None:
            continue
        if site.phase == "input":
            fed[site.sample].append(site)
        elif site.phase == "fwd" and not site.port.startswith("in."):
            found[site] = last.get(site.sample) or fed[site.sample] or fed[None]
            last[site.sample] = [site]
    return found
