"""What limits say of a pair that no replay has told anything of.

A limit is what the operation of a site can add, and what its inputs differ by, amplified by no more than its kind of
operation amplifies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import hypot, inf, isfinite, prod, sqrt
from typing import Any

import numpy as np

from ...core.arrays import wide
from ...core.dtypes import UNIT_ROUNDOFF
from ...core.sites import Site
from ...core.traces import Array, Trace
from ...pair.pairs import Pair
from ..apriori.kinds import GAIN_MARGIN, about_its_mean, is_of_channels, kind_of
from ..apriori.ladder import is_short
from ..case import Case
from ..measure.measuring import Measured, unit_of
from ..measure.result import Finding, Verdict, Why
from ..measure.scales import ELEMENT, ROW, Part, least_part, worst_of
from ..measure.stated import optimizer_of
from ..measure.updates import Update
from ..replay.programs import is_torch_here
from ..unexercised import has_program

BY = "inheritance"
_GRADIENTS = frozenset({"agrad", "grad", "grad_scaled"})
MOST_DECIDED = 0.4  # of a gradient, what decisions at near-ties may be at most
DECIDED = 32.0  # times the root of what the forward passes may differ by, decisions may move a gradient
CANCELS = 1e3  # times as far off as a setting, 1 less it is, where none is on record: the usual 0.999
WAYS = 2  # in which a setting is rounded: as it is stored, and as its power is

Facts = dict[str, Any]


class ByLimits:
    """The limits of a run, and the errors that are known of the sites before the one that is asked of."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.errors: dict[Site, float] = {}  # that each site is known to have
        self.parts: dict[Site, float] = {}  # of its worst part, for that part's size

    def finding(self, item: Measured, producers: Sequence[Site], dirty: Sequence[Site]) -> Finding:
        """What is said of a pair that was computed from `producers`, of which `dirty` are known to be wrong."""
        if item.is_integer:
            return self._integers(item, producers, dirty)
        if item.update is not None:
            return self._update(item, item.update, dirty)
        limits, inherited, site = self.case.limits, self.inherited(producers), item.pair.site
        if site.phase == "optim":
            inherited = max(inherited, self._remembered(site))
        error, limit = limits.error_of(item, producers), limits.limit(item, producers, inherited)
        noise = limits.calibrated(item, error, limit)
        facts: Facts = {"error": error, "limit": limit, "inherited": inherited, "noise": noise}
        if dirty:
            return _inherited(facts, dirty, error > limit)
        if limit >= 1.0:
            return _open(Why.INVISIBLE, facts)
        if not error <= limit:
            return self._beyond(item, facts)
        if limits.is_calibrated(item) or self._is_described(site):
            return self._in_parts(item, producers, facts)
        return self._by_least(item, producers, facts)

    def inherited(self, producers: Sequence[Site]) -> float:
        """The largest error among what a site was computed from."""
        return max((self.errors.get(producer, 0.0) for producer in producers), default=0.0)

    def _is_described(self, site: Site) -> bool:
        """Whether the reference says how a tensor was made, so that a replay would have decided, were torch here."""
        if is_torch_here():
            return False
        record = self.case.items[site].pair.reference
        return has_program(self.case.reference) or (record.op is not None and record.producers is not None)

    def _in_parts(self, item: Measured, producers: Sequence[Site], facts: Facts) -> Finding:
        """A tensor that is within its limit as a whole: in every row, column and element, too, or left open."""
        if item.parts is not None:
            part = worst_of(item.parts, facts["limit"])
            worst = max((self.parts.get(producer, 0.0) for producer in producers), default=0.0)
            passed = self.case.limits.gain(item.pair) * worst
            if part.excess > 1 and (part.error > passed or not self._is_described(item.pair.site)):
                return _open(Why.PART_ALONE, {**facts, **_of_part(part)})
        return Finding(BY, Verdict.NOISE, Why.WITHIN_LIMIT, facts)

    def _by_least(self, item: Measured, producers: Sequence[Site], facts: Facts) -> Finding:
        """A tensor of which nothing says how it was made: as close as the gentlest operations leave two, in every row,
        column and element, or left open. Who is fed a larger error than these make cannot tell its own from it."""
        assert item.measurement is not None
        limits, most = self.case.limits, facts["limit"]
        least = limits.least(item, producers)
        least = min(most, hypot(least, min(facts["inherited"], least)))
        facts = {**facts, "limit": least}
        if item.parts is None or limits.error_of(item, producers) < (item.measurement.rel_l2 or 0.0):  # it cancels
            is_within = facts["error"] <= least
        else:
            unit = self.case.unit(item.pair)
            part = least_part(item.parts, unit, least, least / ROW if is_short(unit) else inf)
            is_within, facts = part.excess <= 1, {**facts, **_of_part(part)}
        if is_within:
            return Finding(BY, Verdict.NOISE, Why.WITHIN_LIMIT, facts)
        return self._unsaid(item, producers, facts, most)

    def _unsaid(self, item: Measured, producers: Sequence[Site], facts: Facts, limit: float) -> Finding:
        """An error of a tensor of which nothing says how it was made: wrong where it is large beside the largest number
        that noise could have come from, else nobody knows."""
        reference, candidate = (wide(array) for array in self.case.load(item.pair))
        terms = self.case.limits.scale_of_terms(item, producers) / sqrt(max(1, item.count))
        finite = np.isfinite(reference)
        largest = max(terms, float(np.nanmax(np.abs(np.where(finite, reference, 0.0)), initial=0.0)))
        apart = float(np.nanmax(np.abs(np.where(finite, candidate - reference, 0.0)), initial=0.0))
        if apart > ELEMENT * limit * largest:
            facts = {**facts, "error": apart / largest if largest else 1.0, "limit": ELEMENT * limit}
            return Finding(BY, Verdict.DRIFT, Why.BEYOND_LIMIT, facts)
        return _open(Why.UNTOLD, facts)

    def _beyond(self, item: Measured, facts: Facts) -> Finding:
        """An error beyond every limit; of a gradient, what decisions at near-ties come to is left open, unless both
        forward passes are the same bits."""
        site, case = item.pair.site, self.case
        if site in case.truths:
            return Finding(BY, Verdict.DRIFT, Why.FAR_FROM_TRUTH, case.truths[site].facts)
        if site.phase in _GRADIENTS and not self._is_forward_the_same(site):
            decided = DECIDED * sqrt(facts["limit"]) + sqrt(2) * _largest_share(case.load(item.pair)[0])
            decided = min(decided, MOST_DECIDED)
            if facts["error"] <= decided:
                return _open(Why.MAYBE_FLIPPED, {**facts, "limit": decided})
        if is_next_to_nothing(item, case):
            return _open(Why.INVISIBLE, {**facts, "limit": 1.0})
        if site.phase == "optim" and facts["error"] <= facts["limit"] + derived(item.pair, case.reference):
            return _open(Why.UNTOLD, facts)
        if self._is_described(site) and (most := facts["limit"] * self._amplified(item)) >= facts["error"]:
            return _open(Why.INVISIBLE, {**facts, "limit": most})
        return Finding(BY, Verdict.DRIFT, Why.BEYOND_LIMIT, facts)

    def _amplified(self, item: Measured) -> float:
        """By how much a norm enlarges what its input was rounded by, where it takes off a mean that is nearly all."""
        pair, op = item.pair, (item.pair.reference.op or "").lower()
        if pair.site.phase != "fwd" or kind_of(op) != "norm" or "rms" in op:
            return 1.0
        inputs = (self.case.items[producer].pair for producer in self.case.limits.producers(pair.site))
        alike = (one for one in inputs if one.reference.shape == pair.reference.shape)
        return max((about_its_mean(self.case.load(one)[0], is_of_channels(op)) for one in alike), default=1.0)

    def _is_forward_the_same(self, site: Site) -> bool:
        """Whether a forward pass was compared, and all of it is the same bits."""
        wanted = "fwd", site.step, site.sample
        items = self.case.items.items()
        seen = [item.measurement for one, item in items if (one.phase, one.step, one.sample) == wanted]
        return bool(seen) and all(measurement is not None and measurement.bit_equal for measurement in seen)

    def _integers(self, item: Measured, producers: Sequence[Site], dirty: Sequence[Site]) -> Finding:
        """Whole numbers that no replay explains: wrong where what they were made of is the same, else nobody knows."""
        assert item.measurement is not None
        facts: Facts = {"differing": item.measurement.differing, "count": item.measurement.count}
        if dirty:
            return _inherited(facts, dirty, True)
        if all(self.errors.get(producer, 0.0) == 0 for producer in producers):
            return Finding(BY, Verdict.DRIFT, Why.OTHER_INTEGERS, facts)
        return _open(Why.MAYBE_FLIPPED, facts)

    def _update(self, item: Measured, update: Update, dirty: Sequence[Site]) -> Finding:
        """What was added to weights, without a replay: as a whole, and in single elements."""
        handed = GAIN_MARGIN * self._remembered(item.pair.site)
        limit, apart = update.limit + handed, update.is_apart(handed)
        facts: Facts = {
            "error": update.error,
            "limit": limit,
            "factor": 1 + update.factor,
            "open": update.open + handed,
        }
        facts |= {"alone": update.element} if update.is_gross else {}
        if dirty:
            return _inherited(facts, dirty, apart)
        if update.is_apart(handed + derived(item.pair, self.case.reference)):
            return Finding(BY, Verdict.DRIFT, Why.BEYOND_LIMIT, facts)
        if apart:
            return _open(Why.UNTOLD, facts)
        if update.is_hidden or limit >= 1:
            return _open(Why.HIDDEN_UPDATE, facts)
        return Finding(BY, Verdict.NOISE, Why.WITHIN_LIMIT, facts)

    def _remembered(self, site: Site) -> float:
        """The largest error of a parameter's gradients so far, and of what was kept of them: an optimizer remembers."""
        port = site.port.rpartition(".")[0] if site.phase == "optim" else site.port

        def is_behind(other: Site) -> bool:
            if other.step > site.step or other.name != site.name:
                return False
            is_kept = other.phase == "optim" and other.port.startswith(f"{port}.")
            is_gradient = other.phase in ("grad", "grad_scaled") and other.port == port
            return is_kept or (is_gradient and (other.call, other.sample) == (site.call, site.sample))

        known = (error for other, error in self.errors.items() if is_behind(other) and isfinite(error))
        return max((min(error, 1.0) for error in known), default=0.0)


def _open(why: Why, facts: Facts) -> Finding:
    return Finding(BY, Verdict.INCONCLUSIVE, why, facts)


def _inherited(facts: Facts, dirty: Sequence[Site], beyond: bool) -> Finding:
    facts = {**facts, "from": dirty[0], "beyond": beyond}
    return Finding(BY, Verdict.INHERITED, Why.FOLLOWS_INPUTS, facts)


def _of_part(part: Part) -> Facts:
    return {"error": part.error, "limit": part.limit, "where": part.where}


def _largest_share(array: Array) -> float:
    """The largest number of a tensor beside its norm: what one decision may put in another place."""
    numbers = np.abs(wide(array))
    numbers = np.where(np.isfinite(numbers), numbers, 0.0)
    norm = float(np.linalg.norm(numbers))
    return float(numbers.max(initial=0.0)) / norm if norm else 0.0


def derived(pair: Pair, reference: Trace) -> float:
    """How far an update may be off, or what an optimizer remembers, relative to it, where its numbers are derived in
    float32 and no program says how: 1 less a setting cancels."""
    said = {**optimizer_of(reference.header), **pair.reference.attrs}
    cancels = [1 / (1 - value) for value in _floats(list(said.values())) if 0 < value < 1]
    return WAYS * min(unit_of(pair), UNIT_ROUNDOFF["f32"]) * (sum(cancels) if cancels else CANCELS)


def _floats(item: Any) -> Iterator[float]:
    if isinstance(item, list | tuple):
        for one in item:
            yield from _floats(one)
    elif isinstance(item, float):
        yield item


def is_next_to_nothing(item: Measured, case: Case) -> bool:
    """Whether a gradient is no more, on both sides, than one rounding of its terms leaves where they cancel."""
    assert item.measurement is not None
    if item.pair.site.phase != "grad":
        return False
    size = sqrt(max(1, item.count))
    largest = max(item.measurement.norm_reference / size, item.measurement.rms or 0.0)
    return largest <= case.unit(item.pair) * _terms(item, case, size)


def _terms(item: Measured, case: Case, size: float) -> float:
    """The root mean square that a gradient would have if its terms did not cancel, as far as anything tells."""
    site, producers = item.pair.site, case.limits.producers(item.pair.site)

    def norm(one: Site) -> float:
        measured = case.items[one].measurement
        return 0.0 if measured is None else measured.norm_reference

    back = [one for one in producers if one.phase == "agrad"]
    forward = [one for one in producers if one.phase in ("fwd", "input")]
    if back and forward:
        rows = [max(1, prod((case.items[one].pair.reference.shape or ())[:-1])) for one in back]
        flowing = sum(norm(one) / sqrt(count) for one, count in zip(back, rows, strict=True))
        return flowing * max(map(norm, forward)) / size
    beside = [one for one in case.items if one._replace(port=site.port) == site != one]
    return max((norm(one) / sqrt(max(1, case.items[one].count)) for one in beside), default=0.0)
