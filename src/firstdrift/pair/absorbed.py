"""Sites of the reference that the candidate computes inside something else, each with what explains it.

They are never counted as covered. An explanation is a fact of the two traces: the tensor is one that was compared
under another name, or everything that is computed with it was, and everything that it is computed with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import prod

import numpy as np

from ..records import Record
from ..sites import PARAMETER_PHASES, Site, in_words
from ..traces import Trace
from .conventions import is_bookkeeping
from .pairs import Pair, Unmatched


class Absorbing:
    """Which of the reference's sites without a counterpart are explained."""

    def __init__(self, reference: Trace, pairs: Mapping[Site, Pair], candidate: Iterable[Site]) -> None:
        self.trace = reference
        self.pairs = pairs
        self.records = {record.site: record for record in reference.records}
        self.readers: dict[Site, list[Site]] = {}
        for record in reference.records:
            for producer in record.producers or ():
                self.readers.setdefault(producer, []).append(record.site)
        self.returned: dict[Site, list[Site]] = {}
        for site in self.records:
            if site.phase == "fwd" and not _is_input(site):
                self.returned.setdefault(_call(site), []).append(site)
        self.ran = {(site.step, site.name) for site in candidate if site.phase == "fwd"}
        self.outputs = {
            (site.step, site.name, site.call) for site in pairs if site.phase == "fwd" and not _is_input(site)
        }
        self.names = {site.name: pair.candidate[0].site.name for site, pair in pairs.items() if pair.candidate}
        self.fed = {(site.step, site.name) for site in candidate if _is_input(site)}
        self.weights: dict[str, list[Record]] = {}
        for record in reference.records:
            if record.site.phase == "weight" and not is_bookkeeping(record.site.port):
                self.weights.setdefault(record.site.name, []).append(record)
        self.known: dict[Site, str] = {}

    def explain(self, sites: Iterable[Site]) -> None:
        """Explain what can be, each by what was compared or is explained already: nothing explains itself."""
        waiting = list(sites)
        while True:
            found = {site: why for site in waiting if (why := self._why(site)) is not None}
            if not found:
                return
            self.known |= found
            waiting = [site for site in waiting if site not in found]

    def why(self, site: Site) -> str | None:
        """What explains that the candidate has no such site, as far as is known."""
        return self.known.get(site)

    def _why(self, site: Site) -> str | None:
        if site.phase in PARAMETER_PHASES:
            return "bookkeeping, which the candidate does without" if is_bookkeeping(site.port) else None
        if site.phase == "agrad":
            forward = site._replace(phase="fwd")
            return self.why(forward) if forward in self.records and forward not in self.pairs else None
        if site.phase != "fwd":
            return None
        if _is_input(site):
            return self._input(site)
        return self._passed_on(site) or self._inside(site)

    def _input(self, site: Site) -> str | None:
        """An input of a module whose output was compared, or is itself explained."""
        if (site.step, site.name, site.call) in self.outputs and not self._lacks_inputs(site):
            return "an input that the candidate did not record; what is made of it was compared"
        outputs = self.returned.get(_call(site), ())
        return next((why for one in outputs if (why := self.why(one)) is not None), None)

    def _lacks_inputs(self, site: Site) -> bool:
        """Whether the candidate, which records what modules are fed, has left it out for one of the same name."""
        name = self.names.get(site.name, site.name)
        return name == site.name and (site.step, name) not in self.fed

    def _passed_on(self, site: Site) -> str | None:
        """The very tensor that was compared elsewhere: dropout in evaluation, a container's last result."""
        for producer in self._producers(site):
            if producer in self.pairs and self._is_same(site, producer):
                return f"it hands on {in_words(producer)}, which was compared"
        return None

    def _is_same(self, site: Site, other: Site) -> bool:
        one, two = self.records[site], self.records[other]
        if one.at is None or two.at is None or (one.dtype, prod(one.shape or ())) != (two.dtype, prod(two.shape or ())):
            return False
        return one.at == two.at or bool(
            np.array_equal(self.trace.array(one).reshape(-1), self.trace.array(two).reshape(-1))
        )

    def _inside(self, site: Site) -> str | None:
        """A step of what the candidate computes as one: its weights were compared, and all that is made of it."""
        record = self.records.get(site)
        if record is None or record.producers is None or self._has_run(site):
            return None
        if any(one.site not in self.pairs for one in self.weights.get(site.name, ())):
            return None
        readers = [one for one in self._readers(site) if one != site]
        if not readers:
            return None
        reached = [self._reached(one) for one in readers]
        if any(one is None for one in reached):
            return None
        pair = self.pairs.get(reached[0]) if reached[0] is not None else None
        into = "" if pair is None or not pair.candidate else f" {pair.candidate[0].site.name!r}"
        return f"a step inside the candidate's{into}; what is made of it was compared"

    def _reached(self, site: Site) -> Site | None:
        """The compared output that shows what is read here."""
        if site in self.pairs and not _is_input(site):
            return site
        if _is_input(site):
            outputs = self.returned.get(_call(site), ())
            return next((found for one in outputs if (found := self._reached(one)) is not None), None)
        return site if self.why(site) is not None else None

    def _producers(self, site: Site) -> list[Site]:
        found: list[Site] = []
        waiting, seen = [site], {site}
        while waiting:
            record = self.records.get(waiting.pop())
            for producer in (record.producers if record is not None else None) or ():
                if producer not in seen:
                    seen.add(producer)
                    found.append(producer)
                    if _is_input(producer) or self.why(producer) is not None:
                        waiting.append(producer)
        return found

    def _readers(self, site: Site) -> Collection[Site]:
        return self.readers.get(site, ())

    def _has_run(self, site: Site) -> bool:
        """Whether the candidate recorded something of a module of this name: then it is not inside another."""
        return (site.step, self.names.get(site.name, site.name)) in self.ran


def explained(
    items: Iterable[Unmatched], reference: Trace, pairs: Mapping[Site, Pair], candidate: Iterable[Site]
) -> tuple[list[Unmatched], list[Unmatched]]:
    """What stays without a counterpart, and what is absorbed, with its reason."""
    waiting = list(items)
    if not waiting:
        return [], []
    absorbing = Absorbing(reference, pairs, list(candidate))
    absorbing.explain([item.site for item in waiting])
    left = [item for item in waiting if item.site not in absorbing.known]
    return left, [Unmatched(item.site, why) for item in waiting if (why := absorbing.why(item.site)) is not None]


def _is_input(site: Site) -> bool:
    return site.phase == "fwd" and site.port.startswith("in.")


def _call(site: Site) -> Site:
    """The call of a module that a site belongs to."""
    return site._replace(port="")
