"""Sites of the reference that the candidate computes inside something else, each with what explains it.

They are never counted as covered. An explanation is a fact of the two traces: the tensor is one that was compared
under another name, or everything that is computed with it was, and everything that it is computed with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import prod

import numpy as np

from ..core.sites import PARAMETER_PHASES, Site, in_words
from ..core.traces import Trace
from .conventions import is_bookkeeping
from .pairs import Pair, Unmatched
from .structure.outline import dims_of, is_input

UNREAD = "a further result, which nothing reads; what else is returned was compared"


class Absorbing:
    """Which of the reference's sites without a counterpart are explained."""

    def __init__(
        self, reference: Trace, pairs: Mapping[Site, Pair], candidate: Trace, refuted: Collection[str],
        folded: Mapping[Site, str],
    ) -> None:  # fmt: skip
        self.trace, self.pairs = reference, pairs
        self.records = {record.site: record for record in reference.records}
        self.refuted = refuted  # modules that the candidate may have, with other numbers
        self.readers: dict[Site, list[Site]] = {}
        self.returned: dict[Site, list[Site]] = {}  # by the call that returns them
        self.weights: dict[str, list[Site]] = {}
        for site, record in self.records.items():
            for producer in record.producers or ():
                self.readers.setdefault(producer, []).append(site)
            if site.phase == "fwd" and not is_input(site):
                self.returned.setdefault(_call(site), []).append(site)
            elif site.phase == "weight" and not is_bookkeeping(site.port):
                self.weights.setdefault(site.name, []).append(site)
        forward = [record.site for record in candidate.records if record.site.phase == "fwd"]
        self.ran = {(site.step, site.name) for site in forward}
        self.fed = {(site.step, site.name) for site in forward if is_input(site)}
        paired = [site for site in pairs if site.phase == "fwd"]
        self.ported = {(site.step, site.name, site.port) for site in paired}
        self.outputs = {(site.step, site.name, site.call) for site in paired if not is_input(site)}
        self.names = {site.name: pair.candidate[0].site.name for site, pair in pairs.items() if pair.candidate}
        used = {record.site for pair in pairs.values() for record in pair.candidate}
        self.known: dict[Site, str] = dict(folded)
        self.folded = {site.name for site in folded}  # modules whose name is something else's there
        self.tied = _tied(reference)
        self.spare = {
            dims_of(record) for record in candidate.records if record.site.phase == "weight" and record.site not in used
        }

    def explain(self, sites: Iterable[Site]) -> None:
        """Explain what can be, each by what was compared or is explained already: nothing explains itself."""
        waiting = list(sites)
        while True:
            found = {site: why for site in waiting if (why := self._why(site)) is not None}
            if not found:
                return
            self.known |= found
            waiting = [site for site in waiting if site not in found]

    def _why(self, site: Site) -> str | None:
        if site.phase in PARAMETER_PHASES:
            return self._parameter(site)
        if site.phase == "agrad":
            forward = site._replace(phase="fwd")
            return self.known.get(forward) if forward in self.records and forward not in self.pairs else None
        if site.phase != "fwd":
            return None
        if is_input(site):
            return self._input(site)
        return self._passed_on(site) or self._inside(site) or self._unread(site)

    def _parameter(self, site: Site) -> str | None:
        """A buffer that keeps books, or a further name of a tensor that was compared."""
        if is_bookkeeping(site.port):
            return "bookkeeping, which the candidate does without"
        twin = self.tied.get(site)
        if twin is not None and twin in self.pairs and dims_of(self.records[twin]) not in self.spare:
            return f"tied: the very tensor of {in_words(twin)}, which was compared"
        return None

    def _input(self, site: Site) -> str | None:
        """An input of a module whose output was compared, or is itself explained."""
        name = self.names.get(site.name, site.name)
        # A candidate that records what modules are fed may have left it out for one of the same name.
        compared = (site.step, site.name, site.call) in self.outputs
        if compared and (name != site.name or (site.step, name) in self.fed):
            return "an input that the candidate did not record; what is made of it was compared"
        return next((self.known[output] for output in self.returned.get(_call(site), ()) if output in self.known), None)

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
        if self.records[site].producers is None or (self._has_run(site) and site.name not in self.folded):
            return None
        if any(weight not in self.pairs and weight not in self.known for weight in self.weights.get(site.name, ())):
            return None
        reached = [self._reached(reader) for reader in self.readers.get(site, ()) if reader != site]
        if not reached or None in reached:
            return None
        pair = self.pairs.get(reached[0]) if reached[0] is not None else None
        into = "" if pair is None or not pair.candidate else f" {pair.candidate[0].site.name!r}"
        return f"a step inside the candidate's{into}; what is made of it was compared"

    def _unread(self, site: Site) -> str | None:
        """A further result that nothing reads, of a call whose other results were compared or are explained."""
        read = any(self.known.get(reader) != UNREAD for reader in self.readers.get(site, ()))
        if self.records[site].producers is None or not site.name or read:
            return None
        others = [other for other in self.returned.get(_call(site), ()) if other != site]
        return UNREAD if any(other in self.pairs or other in self.known for other in others) else None

    def _reached(self, site: Site) -> Site | None:
        """The compared output that shows what is read here."""
        if site in self.pairs and not is_input(site):
            return site
        if is_input(site):
            outputs = self.returned.get(_call(site), ())
            return next((found for output in outputs if (found := self._reached(output)) is not None), None)
        return site if site in self.known else None

    def _producers(self, site: Site) -> list[Site]:
        found: list[Site] = []
        waiting, seen = [site], {site}
        while waiting:
            record = self.records.get(waiting.pop())
            for producer in (record.producers if record is not None else None) or ():
                if producer not in seen:
                    seen.add(producer)
                    found.append(producer)
                    if is_input(producer) or producer in self.known:
                        waiting.append(producer)
        return found

    def _has_run(self, site: Site) -> bool:
        """Whether the candidate recorded such a module itself, or this result of another call: it is no step inside."""
        return (
            site.name in self.refuted
            or (site.step, site.name) in self.ran
            or (site.step, site.name, site.port) in self.ported
        )


def _tied(trace: Trace) -> dict[Site, Site]:
    """Every further name of a tied tensor, with the one under which it is stored."""
    found: dict[Site, Site] = {}
    for record in trace.records:
        for alias in record.aliases if record.site.phase in PARAMETER_PHASES else ():
            name, _, port = alias.rpartition(".")
            found[record.site._replace(name=name, port=port)] = record.site
    return found


def explained(
    items: Iterable[Unmatched],
    reference: Trace,
    pairs: Mapping[Site, Pair],
    candidate: Trace,
    refuted: Collection[str] = (),
    folded: Mapping[Site, str] = {},
) -> tuple[list[Unmatched], list[Unmatched]]:
    """What stays without a counterpart, and what is absorbed, with its reason; `folded` are known to be."""
    waiting = list(items)
    if not waiting:
        return [], []
    absorbing = Absorbing(reference, pairs, candidate, refuted, folded)
    absorbing.explain([item.site for item in waiting])
    left = [item for item in waiting if item.site not in absorbing.known]
    return left, [Unmatched(item.site, why) for item in waiting if (why := absorbing.known.get(item.site)) is not None]


def _call(site: Site) -> Site:
    """The call of a module that a site belongs to."""
    return site._replace(port="")
