"""What both sides were given: the same inputs and the same weights, element by element, or not."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.arrays import wide
from ...core.dtypes import roundoff
from ...core.sites import Site
from ...core.traces import Array
from ..case import Case, Chains, Findings, last, undecided
from ..measure.measuring import Measured
from ..measure.result import CLEAN, Finding, Verdict, Why
from ..measure.updates import NOISIER, update_of

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
        return _updated(item, earlier, case, {**facts, "from": earlier, "to": site.step})
    return Finding(BY, Verdict.DRIFT, Why.OTHER_WEIGHT, facts)


def _updated(item: Measured, earlier: int, case: Case, facts: dict[str, Any]) -> Finding:
    """A weight that was the same some steps before: what was added to it since, as far as gradients leave that open."""
    site, steps = item.pair.site, item.pair.site.step - earlier
    now = case.load(item.pair)
    then = _at(site._replace(step=earlier), now, case)
    if then is None or not _are_finite(now):
        return Finding(BY, Verdict.DRIFT, Why.UPDATES_BETWEEN, facts)
    phases = (site._replace(step=earlier, phase=phase) for phase in ("grad_scaled", "grad"))
    gradients = next(filter(None, (_at(one, now, case) for one in phases)), None)
    unit = roundoff(item.pair.reference.dtype, *(record.dtype for record in item.pair.candidate))
    update = update_of(then, now, unit, gradients)
    limit = max(update.open, NOISIER * update.noise)
    facts |= {"error": update.error, "limit": limit, "factor": 1 + update.factor}
    most = max(abs(update.factor), update.error)
    if update.is_gross or most > limit * steps:
        return Finding(BY, Verdict.DRIFT, Why.UPDATES_BETWEEN, facts)
    if update.is_hidden or limit >= 1 or most > limit or update.element > NOISIER:
        return Finding(BY, Verdict.INCONCLUSIVE, Why.HIDDEN_UPDATE, facts)
    return Finding(BY, Verdict.NOISE, Why.WITHIN_LIMIT, facts)


def _at(site: Site, like: tuple[Array, Array], case: Case) -> tuple[Array, Array] | None:
    """Both sides' tensors of another site of the same parameter."""
    item = case.items.get(site)
    if item is None or item.measurement is None:
        return None
    reference, candidate = case.load(item.pair)
    return (reference, candidate) if reference.shape == like[0].shape == candidate.shape else None


def _are_finite(both: tuple[Array, Array]) -> bool:
    return all(bool(np.isfinite(wide(array)).all()) for array in both)


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
    steps = [item.step for item in case.items if item._replace(step=site.step) == site and item.step < site.step]
    clean = [step for step in steps if _is_clean(site._replace(step=step), chains)]
    return max(clean, default=None)


def _is_clean(site: Site, chains: Chains) -> bool:
    finding = last(chains, site)
    return finding is not None and finding.verdict in CLEAN
