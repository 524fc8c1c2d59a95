"""Introduced or inherited: in causal order, what every pair comes to, given what it was computed from.

A replay knows what an operation added to what came in. Where there was none, the limits of the site have to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.sites import BACKWARD_PHASES, Site
from ..case import Case, Chain, Chains, Findings
from ..measure.measuring import Measured
from ..measure.result import DIRTY, DRIFTS, Finding, Verdict, Why
from ..measure.scales import worst_of
from .by_limits import ByLimits

BY = "inheritance"
_LATE = BACKWARD_PHASES | {"loss", "lossgrad", "optim", "weight_after"}
_EXCEPTED = frozenset({Why.FILL, Why.SAME_FUNCTION, Why.DECLARED_PRECISION})


def inheritance(case: Case, chains: Chains) -> Findings:
    """The last word on every pair that was computed: drift, inherited, or what noise explains."""
    walk = _Walk(case, chains)
    for site in case.items:
        finding = walk.of(site)
        if finding is not None:
            walk.found[site] = finding
        walk.note(site)
    return walk.found


class _Walk:
    """A walk in causal order: what was found on the way decides what comes after."""

    def __init__(self, case: Case, chains: Chains) -> None:
        self.case, self.chains = case, chains
        self.limits = ByLimits(case)
        self.found: dict[Site, Finding] = {}
        self.drifts: dict[Site, str] = {}  # and who made them

    def last(self, site: Site) -> Finding | None:
        """The last word on a site so far."""
        chain: Chain = self.chains.get(site, ())
        return self.found.get(site) or (chain[-1] if chain else None)

    def is_dirty(self, site: Site) -> bool:
        """Whether a site is known to be wrong."""
        now = self.last(site)
        return now is not None and now.verdict in DIRTY

    def of(self, site: Site) -> Finding | None:
        """What is to be said of a site beyond what was said already."""
        now, item = self.last(site), self.case.items[site]
        if now is None or item.measurement is None or site.phase in ("input", "weight"):
            return None
        producers = self.evidence(site)
        dirty = [producer for producer in producers if self.is_dirty(producer)] or self.drifts_inside(site)
        source = now.facts.get("source")
        if source is not None and self.is_dirty(source):
            dirty = [source, *dirty]
        match now.why:
            case Why.WITHIN_DRAWS:
                return self.explained(now, item, dirty, producers)
            case Why.INTRODUCED | Why.SHORTER_CALLS:
                return self.follows_forward(site, now)
            case Why.NON_FINITE | Why.BEYOND_TOLERANCE if dirty:
                facts = {**now.facts, "from": dirty[0], "beyond": True}
                return Finding(BY, Verdict.INHERITED, Why.FOLLOWS_INPUTS, facts)
            case Why.DOUBT:
                return self.limits.finding(item, producers, dirty)
        return None

    def note(self, site: Site) -> None:
        """Remember what those behind a site have to know of it."""
        item, now = self.case.items[site], self.last(site)
        if item.measurement is None or now is None:
            return
        excepted = now.why in _EXCEPTED or now.why is Why.NEAR_TIE
        producers = self.case.limits.producers(site)
        self.limits.errors[site] = 0.0 if excepted else self.case.limits.error_of(item, producers)
        if item.parts is not None and not excepted:
            self.limits.parts[site] = worst_of(item.parts, self.case.unit(item.pair)).error
        if now.verdict in DRIFTS:
            self.drifts[site] = self.case.graph.introducer(site)

    def evidence(self, site: Site) -> list[Site]:
        """What a site was computed from, seen through whatever was not measured."""
        found: dict[Site, None] = {}
        waiting, seen = self.case.graph.producers(site), {site}
        while waiting:
            producer = waiting.pop(0)
            now = self.last(producer)
            if producer in seen or now is None or producer not in self.case.items:
                continue
            seen.add(producer)
            if self.case.items[producer].measurement is None and now.verdict is not Verdict.DRIFT:
                waiting.extend(self.case.graph.producers(producer))
            else:
                found[producer] = None
        return list(found)

    def drifts_inside(self, site: Site) -> list[Site]:
        """A container inherits from whatever drifted inside it."""
        within = f"{site.name}." if site.name else ""
        alike = (drift for drift in self.drifts if (drift.phase, drift.step) == (site.phase, site.step))
        return [one for one in alike if one.name != site.name and one.name.startswith(within)][:1]

    def explained(
        self, now: Finding, item: Measured, dirty: Sequence[Site], producers: Sequence[Site]
    ) -> Finding | None:
        """A site whose own operation is right on what came in."""
        assert item.measurement is not None
        if dirty:
            return Finding(BY, Verdict.INHERITED, Why.FOLLOWS_INPUTS, {**now.facts, "from": dirty[0]})
        if item.is_integer:
            facts = {"differing": item.measurement.differing, "count": item.count, "proof": "replayed"}
            return Finding(BY, Verdict.FLIP, Why.DECIDED_BEFORE, facts)
        error, came_in = item.measurement.rel_l2 or 0.0, self.limits.inherited(producers)
        limit = self.case.limits.limit(item, producers, came_in)
        if now.facts.get("inherited") is None or error <= max(limit, now.facts.get("limit", 0.0)):
            return None
        before = [found for found in map(self.last, producers) if found is not None]
        flipped = any(found.verdict is Verdict.FLIP for found in before)
        if flipped or (self.decides(item) and not any(found.why in _EXCEPTED for found in before)):
            return Finding(BY, Verdict.FLIP, Why.DECIDED_BEFORE, {**now.facts, "proof": "replayed"})
        return Finding(BY, Verdict.NOISE, Why.AMPLIFIED, {**now.facts, "fed": came_in})

    def decides(self, item: Measured) -> bool:
        """Whether something was decided on the way to a site, and may have been decided otherwise on either side."""
        return self.case.replays is not None and self.case.replays.decides(item.pair.reference.site)

    def follows_forward(self, site: Site, now: Finding) -> Finding | None:
        """A gradient of an operation whose forward drifts is wrong as well."""
        if site.phase not in _LATE:
            return None
        makers = {site.name, *(other.name for other in self.case.graph.consumers(site))}
        makers |= {name.rpartition(".")[0] for name in makers}
        for other, by in self.drifts.items():
            if other.phase == "fwd" and other.step == site.step and ({other.name, by} & makers):
                return Finding(BY, Verdict.INHERITED, Why.FOLLOWS_FORWARD, {**now.facts, "from": other})
        return None
