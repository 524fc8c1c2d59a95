"""What both sides were given: the same inputs and the same weights, element by element, or not."""

from __future__ import annotations

import numpy as np

from ..compare.measuring import Measured
from ..compare.result import CLEAN, Finding, Verdict, Why
from ..sites import Site
from .case import Case, Chains, Findings, last, undecided

BY = "given"
ROUNDED = (
    2.02  # roundings by which an element may be off, for its size: loaders that convert in two steps end up beside
)


def given(case: Case, chains: Chains) -> Findings:
    """Inputs, and weights before a step, that are not the same bits."""
    found: dict[Site, Finding] = {}
    for item in undecided(case, chains):
        if item.pair.site.phase in ("input", "weight"):
            found[item.pair.site] = _of(item, case, {**chains, **{site: (one,) for site, one in found.items()}})
    return found


def _of(item: Measured, case: Case, chains: Chains) -> Finding:
    site, measured = item.pair.site, item.measurement
    assert measured is not None
    unit = case.unit(item.pair)
    error = measured.rel_l2 if measured.nonfinite_agree else None
    facts = {"error": error, "limit": unit}
    if _is_left_by_step(item, case):
        return Finding(BY, Verdict.NOISE, Why.LEFT_BY_STEP, facts)
    if measured.nonfinite_agree and not item.is_integer:
        if item.pair.tolerance is not None:
            return _tolerated(item, error or 0.0)
        apart = measured.max_rel if item.parts is None else item.parts.element
        if item.rounded_equal or (apart or 0.0) <= ROUNDED * unit:
            return Finding(BY, Verdict.NOISE, Why.ROUNDED_EQUAL if item.rounded_equal else Why.ONE_ROUNDING, facts)
    if site.phase == "input":
        return Finding(BY, Verdict.DRIFT, Why.OTHER_INPUT, facts)
    earlier = _clean_before(site, case, chains)
    if earlier is not None:
        return Finding(BY, Verdict.DRIFT, Why.UPDATES_BETWEEN, {**facts, "from": earlier, "to": site.step})
    return Finding(BY, Verdict.DRIFT, Why.OTHER_WEIGHT, facts)


def _tolerated(item: Measured, error: float) -> Finding:
    assert item.pair.tolerance is not None
    allowed = item.pair.tolerance.relative
    facts = {"error": error, "limit": allowed, "source": item.pair.tolerance.source}
    if error <= allowed:
        return Finding(BY, Verdict.NOISE, Why.WITHIN_TOLERANCE, facts)
    return Finding(BY, Verdict.DRIFT, Why.BEYOND_TOLERANCE, facts)


def _is_left_by_step(item: Measured, case: Case) -> bool:
    """Whether a weight is, on both sides, what the step before left, which was judged as an update."""
    site = item.pair.site
    before = case.items.get(site._replace(phase="weight_after", step=site.step - 1))
    if site.phase != "weight" or before is None or before.measurement is None:
        return False
    pairs = zip(case.load(item.pair), case.load(before.pair), strict=True)
    return all(np.array_equal(now.ravel(), then.ravel()) for now, then in pairs)


def _clean_before(site: Site, case: Case, chains: Chains) -> int | None:
    """The last step before this one at which a weight was the same: what differs now, updates have made."""
    steps = [one.step for one in case.items if one._replace(step=site.step) == site and one.step < site.step]
    clean = [step for step in steps if _is_clean(site._replace(step=step), chains)]
    return max(clean, default=None)


def _is_clean(site: Site, chains: Chains) -> bool:
    finding = last(chains, site)
    return finding is not None and finding.verdict in CLEAN
