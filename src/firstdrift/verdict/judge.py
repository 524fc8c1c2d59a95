"""From measurements to verdicts: what noise explains, what was inherited, and what was introduced where.

The rule for a site: its own operation can add so much error (by dtype, kind and number of summed terms), and what
its inputs differ by passes through, amplified by no more than its kind of operation amplifies. An error beyond the
two is a drift where the inputs were clean, and inherited where they were not.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from .._kernels import Measurement
from ..compare.measuring import Measured
from ..compare.pairs import Pair
from ..compare.result import CLEAN, PairResult, Verdict
from ..compare.scales import worst_of
from ..compare.updates import NOISIER, Update
from ..dtypes import roundoff
from ..sites import Site
from ..traces import Array
from .graph import Graph
from .handed_on import is_handed_on, one_factor
from .limits import limits_for
from .noise import GAIN_MARGIN, WORST_OF_MANY
from .parts import worst_for_its_size, worst_part
from .readers import described, is_inside, settle_edges
from .reasons import REFERENCE_OFF

if TYPE_CHECKING:  # needed where a pair differs, and imported there
    from .arbiter import Truth
    from .behind_flips import BehindFlips
    from .choices import Choices
    from .doubts import Doubts
    from .excuses import Excuses

ROUNDED = 4.0  # roundings by which an element of what was loaded may be off, for its size: loaders convert in two steps
SORTED = 16.0  # times the noise of a gradient as it is handed on, that of its numbers in another order may be
NOTHING: Mapping[Site, str] = MappingProxyType({})
_OF_WEIGHTS = ("grad", "grad_scaled", "optim", "weight_after")
_DIRTY = frozenset({Verdict.DRIFT, Verdict.PRECISION, Verdict.INHERITED})


def judge(
    measured: Sequence[Measured], graph: Graph, load: Callable[[Pair], tuple[Array, Array]],
    truths: Mapping[Site, Truth] | None = None,
) -> list[PairResult]:  # fmt: skip
    """Verdicts of all pairs, in causal order.

    `load` fetches both tensors of a pair again, to look for flips; `truths` are what a float64 run says of pairs.
    """
    court = _Court(measured, graph, load, truths or {})
    while True:
        court.hear_all()
        inside, whole = court.other_layouts()
        if inside.keys() <= court.inside.keys():
            break
        # Heard again, everything behind these is judged with the candidate's own weights and layouts.
        inside, whole = {**court.inside, **inside}, {**court.whole, **whole}
        court = _Court(measured, graph, load, truths or {}, inside, whole)
    settle_edges(court.results, court.drifts, load)
    return [court.results[item.pair.site] for item in measured]


def watch(measured: Sequence[Measured], graph: Graph, judged: Sequence[PairResult]) -> Callable[[Measured], bool]:
    """A function that says of a pair with another measurement whether its error would be beyond noise.

    Everything else is as it was measured and judged.
    """
    bench = _Bench(measured, graph, lambda pair: (np.empty(0), np.empty(0)), {})
    bench.hear_all()
    bench.results.update({result.site: result for result in judged})
    return bench.sees


class _Court:
    def __init__(
        self, measured: Sequence[Measured], graph: Graph, load: Callable[[Pair], tuple[Array, Array]],
        truths: Mapping[Site, Truth], inside: Mapping[Site, str] = NOTHING, whole: Mapping[Site, str] = NOTHING,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.load = load
        self.truths = truths
        self.items = {item.pair.site: item for item in measured}
        self.steps = {site.step for site in self.items}
        self.results: dict[Site, PairResult] = {}
        self.limits = limits_for(self.items, graph)
        self.worst: dict[Site, float] = {}  # error of the worst part of each site
        self.parts: dict[Site, float] = {}  # the same, for the part's own size
        self.drifts: list[Site] = []
        self.inside, self.whole = inside, whole  # parts in another layout, and what comes out of them
        # No method: those that are handed it are kept here, and would keep both traces' files open with themselves.
        self.error = partial(_error_of, self.results, inside)

    @cached_property
    def behind_flips(self) -> BehindFlips:
        from .behind_flips import BehindFlips

        return BehindFlips(self.limits, self.error, self.load)

    @cached_property
    def excuses(self) -> Excuses:
        from .excuses import Excuses

        return Excuses(self.items, self.results, self.graph, self.error, self.load)

    @cached_property
    def choices(self) -> Choices:
        from .choices import Choices

        return Choices(self.items, self.results, self.error, self.load, self.behind_flips)

    @cached_property
    def doubts(self) -> Doubts:
        from .doubts import Doubts

        return Doubts(self.items, self.results, self.graph, self.limits, self.load)

    def hear_all(self) -> None:
        for item in self.items.values():
            result = self.results[item.pair.site] = self.hear(item)
            if result.verdict in (Verdict.DRIFT, Verdict.PRECISION):
                self.drifts.append(result.site)

    def hear(self, item: Measured) -> PairResult:
        """The verdict of one pair, given those of everything before it."""
        pair, measurement = item.pair, item.measurement
        if item.problem is not None:
            sent = self.behind_flips.sent(pair)
            return PairResult(pair, Verdict.FLIP if sent else Verdict.NOT_COMPARABLE, sent or item.problem)
        if measurement is None:
            by = self.graph.introducer(pair.site) if item.verdict is Verdict.DRIFT else None
            return PairResult(pair, item.verdict, item.reason, introduced_by=by)
        producers = self.evidence(pair.site)
        error = self.limits.error_of(item, producers)
        inherited = max((self.error(site) for site in producers), default=0.0)
        limit = self.limits.limit(item, producers, inherited)
        judged = PairResult(pair, Verdict.SAME, "", measurement, error, inherited, limit)
        if measurement.bit_equal:
            return replace(judged, reason="bit-equal" if measurement.count else "no elements")
        dirty = [site for site in producers if self.results[site].verdict in _DIRTY]
        if (layout := self.inside.get(pair.site) or self.whole.get(pair.site)) is not None:
            return self.in_other_layout(judged, layout)
        if pair.site.phase in ("input", "weight") and not producers:
            return self.precondition(judged, item)
        if pair.site.phase == "weight" and not dirty and any(self.is_left_by(judged.pair, site) for site in producers):
            return replace(judged, verdict=Verdict.NOISE, reason="as the step before left it")
        if not measurement.nonfinite_agree:
            return self.blame(judged, dirty, _nonfinite(measurement))
        if item.is_integer:
            from .choices import differing

            verdict, reason = (
                (Verdict.DRIFT, differing(measurement)) if dirty else self.choices.about(judged, producers)
            )
            wrong = verdict is Verdict.DRIFT
            return self.blame(judged, dirty, reason) if wrong else replace(judged, verdict=verdict, reason=reason)
        return self.floats(judged, item, dirty, producers)

    def evidence(self, site: Site) -> list[Site]:
        """What a site was computed from, seen through whatever was not measured."""
        found: dict[Site, None] = {}
        waiting, seen = self.graph.producers(site), {site}
        while waiting:
            producer = waiting.pop(0)
            if producer in seen or producer not in self.results:
                continue
            seen.add(producer)
            if self.results[producer].measurement is None and self.results[producer].verdict is not Verdict.DRIFT:
                waiting.extend(self.graph.producers(producer))
            else:
                found[producer] = None
        return list(found)

    def floats(
        self, judged: PairResult, item: Measured, dirty: Sequence[Site], producers: Sequence[Site]
    ) -> PairResult:
        """An error against what noise explains: of the whole tensor, and of its worst part.

        A part may be as much worse than the whole as noise scatters, or as the worst part of an input was already:
        behind a flip, the error of a whole tensor sits in one element.
        """
        assert judged.measurement is not None
        assert judged.error is not None
        assert judged.limit is not None
        if judged.measurement.compared == 0:
            return replace(judged, verdict=Verdict.INCONCLUSIVE, reason="no element is finite on both sides")
        worst = 0.0
        if item.update is not None and judged.pair.tolerance is None:
            return self.of_update(judged, item.update, dirty)
        if judged.error:
            worst = worst_part(judged.measurement) * judged.error / (judged.measurement.rel_l2 or judged.error)
        self.worst[judged.site] = worst
        local = self.limits.local(item, producers)
        if max(judged.error, worst / WORST_OF_MANY) <= local and not dirty:
            return self.in_parts(judged, item, producers, replace(judged, verdict=Verdict.NOISE, reason="within noise"))
        if not dirty and (unclear := self.behind_noise(judged, item, producers)) is not None:
            return unclear
        if (truth := self.truths.get(judged.site)) is not None:
            return self.by_truth(judged, dirty, truth)
        passed = self.limits.gain(judged.pair) * max((self.worst.get(site, 0.0) for site in producers), default=0.0)
        remark = self.limits.remark(item, producers, judged)
        most = self.limits.worst_limit(item, producers, judged.limit, passed)
        if judged.error <= judged.limit and worst > most:
            own = worst_for_its_size(*self.load(judged.pair), judged.measurement)
            worst = min(worst, own * judged.error / (judged.measurement.rel_l2 or judged.error))
        if judged.error <= judged.limit and worst <= most:
            if dirty:
                return replace(judged, verdict=Verdict.INHERITED, reason="follows from its inputs")
            within = replace(judged, verdict=Verdict.NOISE, reason=f"within noise{remark}")
            return self.in_parts(judged, item, producers, within)
        return self.beyond_noise(judged, dirty, worst, remark)

    def of_update(self, judged: PairResult, update: Update, dirty: Sequence[Site]) -> PairResult:
        """What was added to weights: by how much it is off as a whole, and in single elements."""
        judged = replace(judged, limit=max(update.open, NOISIER * update.noise))
        handed = GAIN_MARGIN * self.remembered(judged.site)
        if update.is_gross:
            return self.blame(judged, dirty, "an element of the update is off by more than any step is long")
        if abs(update.factor) > update.open + handed:
            return self.blame(judged, dirty, f"the update is {1 + update.factor:.4g} times the reference's")
        if update.error > NOISIER * update.noise + handed:
            off = f"error {update.error:.1e}, where rounding and gradients explain {update.noise:.1e}"
            return self.blame(judged, dirty, off)
        if dirty:
            return replace(judged, verdict=Verdict.INHERITED, reason="follows from its inputs")
        if update.is_hidden:
            reason = "the update is lost in the rounding of the weights it is added to"
            return replace(judged, verdict=Verdict.INCONCLUSIVE, reason=reason)
        return replace(judged, verdict=Verdict.NOISE, reason="within the rounding of the weights")

    def remembered(self, site: Site) -> float:
        """The largest error of a parameter's gradients so far: an optimizer remembers them."""
        phases = ("grad", "grad_scaled", "optim")
        own = [site._replace(phase=phase, step=step) for phase in phases for step in range(site.step + 1)]
        return max((min(self.error(one), 1.0) for one in own if one in self.results), default=0.0)

    def in_parts(self, judged: PairResult, item: Measured, producers: Sequence[Site], within: PairResult) -> PairResult:
        """What is within noise as a whole: some row, column or element may be beyond it for its own size.

        Whether that is noise of its own, as where large terms cancel, the program tells; without one, nobody.
        """
        assert judged.limit is not None
        if item.parts is None or judged.pair.tolerance is not None:
            return within
        part = worst_of(item.parts, judged.limit)
        passed = self.limits.gain(judged.pair) * max((self.parts.get(site, 0.0) for site in producers), default=0.0)
        self.parts[judged.site] = part.error
        if part.excess <= 1 or part.error <= passed or self.is_sum(judged, producers):
            return within
        reason = f"an error of {part.error:.1e} in {part.where}, where noise explains {part.limit:.1e}"
        return replace(judged, verdict=Verdict.INCONCLUSIVE, reason=f"{reason}, small beside the rest")

    def is_sum(self, judged: PairResult, producers: Sequence[Site]) -> bool:
        """Whether both sides have added up their own terms, which cancel."""
        from .cancelling import is_sum_of_own_terms

        result = self.load(judged.pair)
        flowing = [self.items[site].pair for site in producers if site.phase != "weight"]
        limit = self.limits.local(self.items[judged.site], producers)
        return any(is_sum_of_own_terms(result, self.load(pair), limit) for pair in flowing)

    def behind_noise(self, judged: PairResult, item: Measured, producers: Sequence[Site]) -> PairResult | None:
        """What is to be said of a site whose clean inputs differ by much; None where its error can be judged."""
        if judged.site in self.truths:
            return None
        flip = self.behind_flips.explain(judged, item, producers)
        if (flip := flip or self.behind_flips.sent_others(judged, item, producers)) is not None:
            return replace(judged, verdict=Verdict.FLIP, reason=flip)
        if judged.limit is None or judged.limit < 1.0:
            return None
        if judged.site.phase == "grad_scaled" and self.is_scaled_alike(judged, item, producers):
            return replace(judged, verdict=Verdict.NOISE, reason="both sides made it alike of their own gradients")
        reason = f"errors up to {judged.limit:.1g} of the tensor would be invisible here"
        return replace(judged, verdict=Verdict.INCONCLUSIVE, reason=reason)

    def beyond_noise(self, judged: PairResult, dirty: Sequence[Site], worst: float, remark: str) -> PairResult:
        """What else may explain an error: another layout, a flip, a shorter format; or it is a drift."""
        assert judged.error is not None
        assert judged.limit is not None
        if not dirty and (handed_on := self.excuses.handed_on(judged)) is not None:
            return replace(judged, verdict=Verdict.NOISE, reason=handed_on)
        if not dirty and (flip := self.excuses.flip(judged)) is not None:
            return replace(judged, verdict=Verdict.FLIP, reason=flip)
        if not dirty and (doubt := self.doubts.about(judged)) is not None:
            return replace(judged, verdict=Verdict.INCONCLUSIVE, reason=doubt)
        if not dirty and (precision := self.coarser_precision(judged)) is not None:
            reason = f"{precision}, though declared {judged.pair.candidate[0].dtype}"
            by = self.graph.introducer(judged.site)
            return replace(judged, verdict=Verdict.PRECISION, reason=reason, introduced_by=by)
        whole = judged.error > judged.limit
        shown, where = (judged.error, "") if whole else (worst, " in its worst row, column or block")
        return self.blame(judged, dirty, f"error {shown:.1e}{where}, where noise explains {judged.limit:.1e}{remark}")

    def precondition(self, judged: PairResult, item: Measured) -> PairResult:
        """Inputs and weights come first: equal, equal after rounding, or not."""
        unit = roundoff(judged.pair.reference.dtype, judged.pair.candidate[0].dtype)
        error = judged.error or 0.0
        if judged.measurement is not None and judged.measurement.nonfinite_agree and not item.is_integer:
            limit = judged.pair.tolerance.relative if judged.pair.tolerance else unit
            apart = judged.measurement.max_rel if item.parts is None else item.parts.element
            close = error <= limit and (judged.pair.tolerance is not None or (apart or 0.0) <= ROUNDED * unit)
            if item.rounded_equal or close:
                reason = "equal after rounding" if item.rounded_equal else "within one rounding"
                return replace(judged, verdict=Verdict.NOISE, reason=reason, limit=limit)
        if (earlier := self.earlier(judged.site)) is not None:
            if error <= self.limits.local(item, ()):
                return replace(judged, verdict=Verdict.NOISE, reason="within noise", limit=self.limits.local(item, ()))
            by, reason = (
                f"the updates between steps {earlier} and {judged.site.step}",
                f"the weights differ by {error:.1e}",
            )
            return replace(judged, verdict=Verdict.DRIFT, reason=reason, introduced_by=by, limit=unit)
        if judged.site.phase == "input":
            reason = "the two sides were not fed the same data"
            return replace(judged, verdict=Verdict.DRIFT, reason=reason, introduced_by="the data fed in", limit=unit)
        reason = f"the weights differ by {error:.1e}"
        return replace(judged, verdict=Verdict.DRIFT, reason=reason, introduced_by="the loading of weights", limit=unit)

    def earlier(self, site: Site) -> int | None:
        """The last step before this one that found a weight clean: what differs now, updates have made."""
        before = [site._replace(step=step) for step in self.steps if step < site.step and site.phase == "weight"]
        clean = [one.step for one in before if one in self.results and self.results[one].verdict in CLEAN]
        return max(clean, default=None)

    def in_other_layout(self, judged: PairResult, layout: str) -> PairResult:
        """A part that agrees as a whole vouches for what is inside it, but not for the gradients of its weights: these
        must be the same numbers, in whatever order."""
        from .layouts import LIKEWISE, same_numbers

        if layout == LIKEWISE:
            return replace(judged, verdict=Verdict.INCONCLUSIVE, reason=layout)
        if judged.site.phase in _OF_WEIGHTS and not same_numbers(
            *self.load(judged.pair), SORTED * (judged.limit or 0.0)
        ):
            reason = "its weight is stored in another layout; say which in a map to compare it"
            return replace(judged, verdict=Verdict.INCONCLUSIVE, reason=reason)
        return replace(judged, verdict=Verdict.NOISE, reason=layout)

    def coarser_precision(self, judged: PairResult) -> str | None:
        """What a site was computed or stored in, by the grid of its numbers or by the size of its error."""
        from .precision import NAMES, coarser_grid
        from .rungs import coarser_rung

        if judged.error is None or judged.site.phase == "weight_after":
            return None
        if (dtype := coarser_grid(*self.load(judged.pair), judged.error)) is not None:
            return f"its numbers are rounded to {NAMES[dtype]}"
        rung = coarser_rung(self.items[judged.site], self.limits, self.load)
        if rung is None or self.drift_inside(judged.site) is not None:
            return None
        return f"its error of {judged.error:.1e} is that of {rung.name}"

    def by_truth(self, judged: PairResult, dirty: Sequence[Site], truth: Truth) -> PairResult:
        """A third, more precise run decides: the candidate may be as far from it as the reference is."""
        # A right serial sum may be many times further from the truth than a blocked one; so is what follows from it.
        limit = max(truth.limit, judged.limit or 0.0)
        judged = replace(judged, error=truth.candidate, limit=limit)
        if truth.candidate <= limit:
            suspect = f"; {REFERENCE_OFF}" if truth.reference_suspect else ""
            reason = f"as close to the truth as the reference ({truth.candidate:.1e}, {truth.reference:.1e}){suspect}"
            return replace(judged, verdict=Verdict.NOISE, reason=reason)
        return self.blame(judged, dirty, f"{truth.candidate:.1e} from the truth, the reference {truth.reference:.1e}")

    def blame(self, judged: PairResult, dirty: Sequence[Site], reason: str) -> PairResult:
        """An error that noise does not explain belongs to this site, or to what it was computed from."""
        inside = self.drift_inside(judged.site)
        if dirty or inside is not None:
            source = described(inside or dirty[0])
            return replace(judged, verdict=Verdict.INHERITED, reason=f"{reason}; it comes from {source}")
        return replace(judged, verdict=Verdict.DRIFT, reason=reason, introduced_by=self.graph.introducer(judged.site))

    def is_left_by(self, pair: Pair, before: Site) -> bool:
        """Whether a weight is what an update, which was judged as such, left: then it has no error of its own."""
        return before.phase == "weight_after" and is_handed_on(self.load(pair), self.load(self.items[before].pair))

    def is_scaled_alike(self, judged: PairResult, item: Measured, producers: Sequence[Site]) -> bool:
        """Whether both sides made a tensor of the one before it by one factor, the same on both."""
        if len(producers) != 1:
            return False
        sides = zip(self.load(judged.pair), self.load(self.items[producers[0]].pair), strict=True)
        made = [one_factor(seen, raw) for seen, raw in sides]
        limit = self.limits.local(item, producers)
        if any(one is None or one[1] > limit for one in made):
            return False
        (ours, _), (theirs, _) = (one for one in made if one is not None)
        return abs(theirs - ours) <= limit * abs(ours)

    def other_layouts(self) -> tuple[dict[Site, str], dict[Site, str]]:
        """The sites in parts that agree as a whole, and what comes out of these; only a drift can be one."""
        if not self.drifts:
            return {}, {}
        from .layouts import other_layouts

        return other_layouts(self.results, self.limits, self.graph, self.load)

    def drift_inside(self, site: Site) -> Site | None:
        """A container inherits from whatever drifted inside it."""
        for other in self.drifts:
            if (other.phase, other.step) == (site.phase, site.step) and is_inside(other.name, site.name):
                return other
        return None


class _Bench(_Court):
    """Hears one altered pair after the other. What is beyond noise was seen; nobody asks what else may explain it."""

    def sees(self, item: Measured) -> bool:
        """Whether the error of one pair would be beyond noise."""
        site = item.pair.site
        before, worst, parts = self.items[site], self.worst.get(site, 0.0), self.parts.get(site, 0.0)
        self.items[site] = item
        try:
            return self.hear(item).verdict is Verdict.DRIFT
        finally:
            self.items[site], self.worst[site], self.parts[site] = before, worst, parts

    def beyond_noise(self, judged: PairResult, dirty: Sequence[Site], worst: float, remark: str) -> PairResult:
        return replace(judged, verdict=Verdict.DRIFT)

    def in_parts(self, judged: PairResult, item: Measured, producers: Sequence[Site], within: PairResult) -> PairResult:
        found = super().in_parts(judged, item, producers, within)
        return within if found is within else replace(judged, verdict=Verdict.DRIFT)

    def is_sum(self, judged: PairResult, producers: Sequence[Site]) -> bool:
        return False


def _nonfinite(measurement: Measurement) -> str:
    ours = f"{measurement.nan_reference} NaN and {measurement.inf_reference} Inf"
    theirs = f"{measurement.nan_candidate} NaN and {measurement.inf_candidate} Inf"
    return f"the reference has {ours}, the candidate {theirs}, not at the same places"


def _error_of(results: Mapping[Site, PairResult], inside: Container[Site], site: Site) -> float:
    """The error of a site that was judged already; a layout of its own is none."""
    return 0.0 if site in inside else results[site].error or 0.0
