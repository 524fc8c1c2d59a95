"""Introduced or inherited: in causal order, what every pair comes to, given what it was computed from.

A replay knows what an operation added to what came in. Where there was none, the limits of the site have to do: what
its operation can add, and what its inputs differ by, amplified by no more than its kind of operation amplifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import hypot, inf, isfinite, sqrt
from typing import Any

import numpy as np

from ...core.arrays import wide
from ...core.sites import BACKWARD_PHASES, Site
from ...core.traces import Array
from ..apriori.kinds import GAIN_MARGIN, about_its_mean, is_of_channels, kind_of
from ..apriori.ladder import is_short
from ..case import Case, Chain, Chains, Findings
from ..derived import derived
from ..measure.measuring import Measured
from ..measure.result import DIRTY, Finding, Verdict, Why
from ..measure.scales import ELEMENT, ROW, least_part, worst_of
from ..measure.updates import NOISIER, Update
from ..replay.programs import is_torch_here
from ..small_results import is_next_to_nothing
from ..truth import told_of

BY = "inheritance"
_LATE = BACKWARD_PHASES | {"loss", "lossgrad", "optim", "weight_after"}
_EXCEPTED = frozenset({Why.FILL, Why.SAME_FUNCTION, Why.DECLARED_PRECISION})
_DRIFTS = frozenset({Verdict.DRIFT, Verdict.PRECISION})
_GRADIENTS = frozenset({"agrad", "grad", "grad_scaled"})
MOST_DECIDED = 0.4  # of a gradient, what decisions at near-ties may be at most
DECIDED = 32.0  # times the root of what the forward passes may differ by, decisions may move a gradient


def inheritance(case: Case, chains: Chains) -> Findings:
    """The last word on every pair that was computed: drift, inherited, or what noise explains."""
    walk = _Walk(case, chains)
    for site in case.items:
        finding = walk.of(site)
        if finding is not None:
            walk.found[site] = finding
        walk.note(site)
    return walk.found


@dataclass
class _Walk:
    """A walk in causal order: what was found on the way decides what comes after."""

    case: Case
    chains: Chains
    found: dict[Site, Finding] = field(default_factory=dict)
    errors: dict[Site, float] = field(default_factory=dict)  # that each site is known to have
    parts: dict[Site, float] = field(default_factory=dict)  # of its worst part, for that part's size
    drifts: dict[Site, str] = field(default_factory=dict)  # and who made them

    def last(self, site: Site) -> Finding | None:
        """The last word on a site so far."""
        if site in self.found:
            return self.found[site]
        chain: Chain = self.chains.get(site, ())
        return chain[-1] if chain else None

    def of(self, site: Site) -> Finding | None:
        """What is to be said of a site beyond what was said already."""
        now, item = self.last(site), self.case.items[site]
        if now is None or item.measurement is None or site.phase in ("input", "weight"):
            return None
        producers = self.evidence(site)
        dirty = [producer for producer in producers if _is(self.last(producer), DIRTY)] or self.drifts_inside(site)
        source = now.facts.get("source")
        if source is not None and _is(self.last(source), DIRTY):
            dirty = [source, *dirty]
        match now.why:
            case Why.WITHIN_DRAWS:
                return self.explained(now, item, dirty, producers)
            case Why.INTRODUCED | Why.SHORTER_CALLS | Why.SHORTER_GRID | Why.SHORTER_RUNG:
                return self.follows_forward(site, now)
            case Why.NON_FINITE | Why.FAR_FROM_TRUTH | Why.BEYOND_TOLERANCE:
                return self.inherited(now, dirty)
            case Why.DOUBT:
                return self.by_limits(site, item, producers, dirty)
            case Why.CLEAR | Why.WITHIN_TOLERANCE | Why.NEAR_TRUTH:
                return None
        return None

    def note(self, site: Site) -> None:
        """Remember what those behind a site have to know of it."""
        item, now = self.case.items[site], self.last(site)
        if item.measurement is None or now is None:
            return
        producers = self.case.limits.producers(site)
        excepted = now.why in _EXCEPTED or now.why is Why.NEAR_TIE
        self.errors[site] = 0.0 if excepted else self.case.limits.error_of(item, producers)
        if item.parts is not None and not excepted:
            self.parts[site] = worst_of(item.parts, self.case.unit(item.pair)).error
        if now.verdict in _DRIFTS:
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
        site, error = item.pair.site, (item.measurement and item.measurement.rel_l2) or 0.0
        if dirty:
            return Finding(BY, Verdict.INHERITED, Why.FOLLOWS_INPUTS, {**now.facts, "from": dirty[0]})
        inherited = now.facts.get("inherited")
        flipped = any(_is(self.last(producer), {Verdict.FLIP}) for producer in producers)
        if item.is_integer:
            facts = {"differing": item.measurement.differing if item.measurement else 0, "count": item.count}
            return Finding(BY, Verdict.FLIP, Why.DECIDED_BEFORE, {**facts, "proof": "replayed"})
        limit = self.case.limits.limit(item, producers, self.inherited_error(producers))
        if inherited is None or error <= limit or error <= now.facts.get("limit", 0.0):
            return None
        otherwise = any(now is not None and now.why in _EXCEPTED for now in map(self.last, producers))
        if flipped or (self.is_decided_otherwise(site) and not otherwise):
            return Finding(BY, Verdict.FLIP, Why.DECIDED_BEFORE, {**now.facts, "proof": "replayed"})
        fed = max((self.errors.get(producer, 0.0) for producer in producers), default=0.0)
        return Finding(BY, Verdict.NOISE, Why.AMPLIFIED, {**now.facts, "fed": fed})

    def is_decided_otherwise(self, site: Site) -> bool:
        """Whether something was decided on the way to a site, and may have been decided otherwise on either side."""
        replays, pair = self.case.replays, self.case.items[site].pair
        return replays is not None and replays.decides(pair.reference.site)

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

    def inherited(self, now: Finding, dirty: Sequence[Site]) -> Finding | None:
        """An error that belongs to what a site was computed from, where that drifts."""
        if not dirty:
            return None
        return Finding(BY, Verdict.INHERITED, Why.FOLLOWS_INPUTS, {**now.facts, "from": dirty[0], "beyond": True})

    def inherited_error(self, producers: Sequence[Site]) -> float:
        """The largest error among what a site was computed from."""
        return max((self.errors.get(producer, 0.0) for producer in producers), default=0.0)

    def by_limits(self, site: Site, item: Measured, producers: Sequence[Site], dirty: Sequence[Site]) -> Finding | None:
        """A site that no replay has told anything of."""
        if item.is_integer:
            return self.integers(item, producers, dirty)
        if item.update is not None:
            return self.update(site, item.update, dirty)
        limits, inherited = self.case.limits, self.inherited_error(producers)
        if site.phase == "optim":
            inherited = max(inherited, self.remembered(site))
        error, limit = limits.error_of(item, producers), limits.limit(item, producers, inherited)
        noise = limits.calibrated(item, error, limit)
        facts: dict[str, Any] = {"error": error, "limit": limit, "inherited": inherited, "noise": noise}
        if dirty:
            facts |= {"from": dirty[0], "beyond": error > limit}
            return Finding(BY, Verdict.INHERITED, Why.FOLLOWS_INPUTS, facts)
        if limit >= 1.0:
            return Finding(BY, Verdict.INCONCLUSIVE, Why.INVISIBLE, facts)
        if not error <= limit:
            return self.beyond(site, item, facts)
        if not limits.is_calibrated(item) and not self.is_told(site):
            return self.by_least(item, producers, facts)
        return self.in_parts(item, producers, limit, facts)

    def by_least(self, item: Measured, producers: Sequence[Site], facts: dict[str, Any]) -> Finding:
        """A tensor of which nothing says how it was made: as close as the gentlest operations leave two, in every row,
        column and element, or left open. Who is fed a larger error than these make cannot tell its own from it."""
        assert item.measurement is not None
        limits = self.case.limits
        least, most = limits.least(item, producers), facts["limit"]
        least = min(most, hypot(least, min(facts["inherited"], least)))
        facts = {**facts, "limit": least}
        if item.parts is None or limits.error_of(item, producers) < (item.measurement.rel_l2 or 0.0):  # it cancels
            is_within = facts["error"] <= least
        else:
            unit = self.case.unit(item.pair)
            part = least_part(item.parts, unit, least, least / ROW if is_short(unit) else inf)
            is_within = part.excess <= 1
            facts |= {"error": part.error, "limit": part.limit, "where": part.where}
        if is_within:
            return Finding(BY, Verdict.NOISE, Why.WITHIN_LIMIT, facts)
        return self.untold(item, producers, facts, most)

    def in_parts(self, item: Measured, producers: Sequence[Site], limit: float, facts: dict[str, Any]) -> Finding:
        """A tensor that is within its limit as a whole: in every row, column and element, too, or left open."""
        if item.parts is not None:
            part = worst_of(item.parts, limit)
            worst = max((self.parts.get(producer, 0.0) for producer in producers), default=0.0)
            passed = self.case.limits.gain(item.pair) * worst
            if part.excess > 1 and (part.error > passed or not self.is_told(item.pair.site)):
                facts = {**facts, "error": part.error, "limit": part.limit, "where": part.where}
                return Finding(BY, Verdict.INCONCLUSIVE, Why.PART_ALONE, facts)
        return Finding(BY, Verdict.NOISE, Why.WITHIN_LIMIT, facts)

    def beyond(self, site: Site, item: Measured, facts: dict[str, Any]) -> Finding:
        """An error beyond every limit; of a gradient, what decisions at near-ties come to is left open, unless both
        forward passes are the same bits."""
        if site in self.case.truths:
            return Finding(BY, Verdict.DRIFT, Why.FAR_FROM_TRUTH, told_of(self.case.truths[site]))
        if site.phase in _GRADIENTS and not self.is_forward_the_same(site):
            decided = DECIDED * sqrt(facts["limit"]) + sqrt(2) * _largest_share(self.case.load(item.pair)[0])
            decided = min(decided, MOST_DECIDED)
            if facts["error"] <= decided:
                return Finding(BY, Verdict.INCONCLUSIVE, Why.MAYBE_FLIPPED, {**facts, "limit": decided})
        if is_next_to_nothing(item, self.case):
            return Finding(BY, Verdict.INCONCLUSIVE, Why.INVISIBLE, {**facts, "limit": 1.0})
        if site.phase == "optim" and facts["error"] <= facts["limit"] + derived(
            self.case.items[site].pair, self.case.reference
        ):
            return Finding(BY, Verdict.INCONCLUSIVE, Why.UNTOLD, facts)
        if self.is_told(site) and (most := facts["limit"] * self.amplified(item)) >= facts["error"]:
            return Finding(BY, Verdict.INCONCLUSIVE, Why.INVISIBLE, {**facts, "limit": most})
        return Finding(BY, Verdict.DRIFT, Why.BEYOND_LIMIT, facts)

    def amplified(self, item: Measured) -> float:
        """By how much a norm enlarges what its input was rounded by, where it takes off a mean that is nearly all."""
        pair, producers = item.pair, self.case.limits.producers(item.pair.site)
        op, shape = (pair.reference.op or "").lower(), pair.reference.shape
        if pair.site.phase != "fwd" or kind_of(op) != "norm" or "rms" in op:
            return 1.0
        alike = [
            self.case.items[producer].pair
            for producer in producers
            if self.case.items[producer].pair.reference.shape == shape
        ]
        return max((about_its_mean(self.case.load(one)[0], is_of_channels(op)) for one in alike), default=1.0)

    def is_forward_the_same(self, site: Site) -> bool:
        """Whether a forward pass was compared, and all of it is the same bits."""
        seen = [item.measurement for other, item in self.case.items.items() if _is_same_pass(other, site)]
        return bool(seen) and all(measurement is not None and measurement.bit_equal for measurement in seen)

    def untold(self, item: Measured, producers: Sequence[Site], facts: dict[str, Any], limit: float) -> Finding:
        """An error of a tensor of which nothing says how it was made: wrong where it is large beside the largest number
        that noise could have come from, else nobody knows."""
        reference, candidate = (wide(array) for array in self.case.load(item.pair))
        terms = self.case.limits.scale_of_terms(item, producers) / sqrt(max(1, item.count))
        largest = max(terms, float(np.nanmax(np.abs(np.where(np.isfinite(reference), reference, 0.0)), initial=0.0)))
        apart = float(np.nanmax(np.abs(np.where(np.isfinite(reference), candidate - reference, 0.0)), initial=0.0))
        if apart > ELEMENT * limit * largest:
            facts = {**facts, "error": apart / largest if largest else 1.0, "limit": ELEMENT * limit}
            return Finding(BY, Verdict.DRIFT, Why.BEYOND_LIMIT, facts)
        return Finding(BY, Verdict.INCONCLUSIVE, Why.UNTOLD, facts)

    def is_told(self, site: Site) -> bool:
        """Whether the reference says how a tensor was made, so that a replay would have decided, were torch here."""
        if is_torch_here():
            return False
        record = self.case.items[site].pair.reference
        return self.case.has_program or (record.op is not None and record.producers is not None)

    def integers(self, item: Measured, producers: Sequence[Site], dirty: Sequence[Site]) -> Finding:
        """Whole numbers that no replay explains: wrong where what they were made of is the same, else nobody knows."""
        assert item.measurement is not None
        facts = {"differing": item.measurement.differing, "count": item.measurement.count}
        if dirty:
            return Finding(BY, Verdict.INHERITED, Why.FOLLOWS_INPUTS, {**facts, "from": dirty[0], "beyond": True})
        if all(self.errors.get(producer, 0.0) == 0 for producer in producers):
            return Finding(BY, Verdict.DRIFT, Why.OTHER_INTEGERS, facts)
        return Finding(BY, Verdict.INCONCLUSIVE, Why.MAYBE_FLIPPED, facts)

    def update(self, site: Site, update: Update, dirty: Sequence[Site]) -> Finding:
        """What was added to weights, without a replay: as a whole, and in single elements."""
        handed = GAIN_MARGIN * self.remembered(site)
        limit = max(update.open, NOISIER * update.noise) + handed
        facts = {"error": update.error, "limit": limit, "factor": 1 + update.factor, "open": update.open + handed}
        facts |= {"alone": update.element} if update.is_gross else {}
        apart = _is_apart(update, handed)
        if dirty:
            return Finding(BY, Verdict.INHERITED, Why.FOLLOWS_INPUTS, {**facts, "from": dirty[0], "beyond": apart})
        if _is_apart(update, handed + derived(self.case.items[site].pair, self.case.reference)):
            return Finding(BY, Verdict.DRIFT, Why.BEYOND_LIMIT, facts)
        if apart:
            return Finding(BY, Verdict.INCONCLUSIVE, Why.UNTOLD, facts)
        if update.is_hidden or limit >= 1:
            return Finding(BY, Verdict.INCONCLUSIVE, Why.HIDDEN_UPDATE, facts)
        return Finding(BY, Verdict.NOISE, Why.WITHIN_LIMIT, facts)

    def remembered(self, site: Site) -> float:
        """The largest error of a parameter's gradients so far, and of what was kept of them: an optimizer remembers."""
        port = site.port.rpartition(".")[0] if site.phase == "optim" else site.port
        gradients = [site._replace(phase=phase, port=port) for phase in ("grad", "grad_scaled")]
        kept = [other for other in self.errors if (other.phase, other.name) == ("optim", site.name)]
        kept = [other for other in kept if other.port.startswith(f"{port}.") and other.step <= site.step]
        before = [gradient._replace(step=step) for gradient in gradients for step in range(site.step + 1)]
        known = [self.errors[one] for one in (*before, *kept) if one in self.errors]
        return max((min(error, 1.0) for error in known if isfinite(error)), default=0.0)


def _is_apart(update: Update, slack: float) -> bool:
    """Whether two updates differ by more than rounding, gradients and something else explain."""
    is_other = abs(update.factor) > update.open + slack
    return update.is_gross or is_other or update.error > NOISIER * update.noise + slack


def _is_same_pass(site: Site, other: Site) -> bool:
    return (site.phase, site.step, site.sample) == ("fwd", other.step, other.sample)


def _largest_share(array: Array) -> float:
    """The largest number of a tensor beside its norm: what one decision may put in another place."""
    numbers = np.abs(wide(array))
    numbers = np.where(np.isfinite(numbers), numbers, 0.0)
    norm = float(np.linalg.norm(numbers))
    return float(numbers.max(initial=0.0)) / norm if norm else 0.0


def _is(finding: Finding | None, verdicts: frozenset[Verdict] | set[Verdict]) -> bool:
    return finding is not None and finding.verdict in verdicts


def without_source(case: Case, chains: Chains) -> Findings:
    """Where nothing drifts, nobody knows what a pair has inherited that no replay has cleared."""
    if any(chain[-1].verdict in _DRIFTS for chain in chains.values()):
        return {}
    found: dict[Site, Finding] = {}
    for site, chain in chains.items():
        if chain[-1].verdict is Verdict.INHERITED:
            cleared = any(finding.why is Why.WITHIN_DRAWS for finding in chain)
            why, verdict = (Why.AMPLIFIED, Verdict.NOISE) if cleared else (Why.SOURCELESS, Verdict.INCONCLUSIVE)
            found[site] = Finding(BY, verdict, why, chain[-1].facts)
    return found
