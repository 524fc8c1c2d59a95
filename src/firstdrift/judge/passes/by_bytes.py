"""What one pass over the bytes tells: what can be compared, what both were given alike, what is clear or in doubt.

NaN on both sides is never green, for nothing was compared there.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np

from ...core.arrays import wide
from ...core.sites import Site
from ...core.traces import Array
from ..case import Case, Chains, Findings, Pass, last, undecided
from ..measure.measuring import Measured, unit_of
from ..measure.result import CLEAN, Finding, Verdict, Why
from ..measure.scales import CLEAR, is_clear
from ..measure.updates import NOISIER, update_of

ROUNDED = 2.02  # roundings an element may be off, for its size: loaders that convert in two steps end up beside


def comparable(case: Case, chains: Chains) -> Findings:
    """Pairs without two tensors of one shape and kind, and pairs that are the same bits."""
    found = {site: _comparable(item) for site, item in case.items.items()}
    return {site: finding for site, finding in found.items() if finding is not None}


def _comparable(item: Measured) -> Finding | None:
    if item.problem is not None:
        return Finding("comparable", Verdict.NOT_COMPARABLE, Why.PROBLEM, {"problem": item.problem})
    if item.absent is not None:
        return Finding("comparable", item.absent.verdict, item.absent.why, {"said": item.absent.said})
    assert item.measurement is not None
    if item.measurement.bit_equal:
        return Finding("comparable", Verdict.SAME, Why.BIT_EQUAL if item.measurement.count else Why.EMPTY)
    return None


def refuse_nan(allowed: tuple[str, ...]) -> Pass:
    """A pass: pairs that are clean where they are finite, and NaN elsewhere on both sides, cannot be compared, unless a
    glob names them."""
    return partial(_refuse_nan, allowed)


def _refuse_nan(allowed: tuple[str, ...], case: Case, chains: Chains) -> Findings:
    found: dict[Site, Finding] = {}
    for site, chain in chains.items():
        measured = case.items[site].measurement if site in case.items else None
        names = site.name, f"{site.name}.{site.port}"
        is_allowed = any(fnmatchcase(name, glob) for name in names for glob in allowed)
        if measured is None or chain[-1].verdict not in CLEAN or is_allowed:
            continue
        if min(measured.nan_reference, measured.nan_candidate):
            facts = {"count": measured.nan_reference, "of": measured.count}
            found[site] = Finding("nan", Verdict.NOT_COMPARABLE, Why.NAN_ON_BOTH, facts)
    return found


def given(case: Case, chains: Chains) -> Findings:
    """Inputs, and weights before a step, that are not the same bits."""
    found: dict[Site, Finding] = {}
    for item in undecided(case, chains):
        if item.pair.site.phase in ("input", "weight"):
            found[item.pair.site] = _given(item, case, {**chains, **{site: (one,) for site, one in found.items()}})
    return found


def _given(item: Measured, case: Case, chains: Chains) -> Finding:
    site, measured = item.pair.site, item.measurement
    assert measured is not None
    unit = case.unit(item.pair)
    facts = {"error": measured.rel_l2 if measured.nonfinite_agree else None, "limit": unit}
    if _is_left_by_step(item, case):
        return Finding("given", Verdict.NOISE, Why.LEFT_BY_STEP, facts)
    if measured.nonfinite_agree and not item.is_integer:
        if item.pair.tolerance is not None:
            return _tolerated("given", item)
        apart = measured.max_rel if item.parts is None else item.parts.element
        if item.rounded_equal or (apart or 0.0) <= ROUNDED * unit:
            return Finding("given", Verdict.NOISE, Why.ROUNDED_EQUAL if item.rounded_equal else Why.ONE_ROUNDING, facts)
    if site.phase == "input":
        return Finding("given", Verdict.DRIFT, Why.OTHER_INPUT, facts)
    earlier = _clean_before(site, case, chains)
    if earlier is not None:
        return _updated(item, earlier, case, {**facts, "from": earlier, "to": site.step})
    return Finding("given", Verdict.DRIFT, Why.OTHER_WEIGHT, facts)


def _updated(item: Measured, earlier: int, case: Case, facts: dict[str, Any]) -> Finding:
    """A weight that was the same some steps before: what was added to it since, as far as gradients leave that open."""
    site, steps = item.pair.site, item.pair.site.step - earlier
    now = case.load(item.pair)
    then = _at(site._replace(step=earlier), now, case)
    if then is None or not all(bool(np.isfinite(wide(array)).all()) for array in now):
        return Finding("given", Verdict.DRIFT, Why.UPDATES_BETWEEN, facts)
    phases = (site._replace(step=earlier, phase=phase) for phase in ("grad_scaled", "grad"))
    gradients = next(filter(None, (_at(one, now, case) for one in phases)), None)
    update = update_of(then, now, unit_of(item.pair), gradients)
    limit, most = update.limit, max(abs(update.factor), update.error)
    facts |= {"error": update.error, "limit": limit, "factor": 1 + update.factor}
    if update.is_gross or most > limit * steps:
        return Finding("given", Verdict.DRIFT, Why.UPDATES_BETWEEN, facts)
    if update.is_hidden or limit >= 1 or most > limit or update.element > NOISIER:
        return Finding("given", Verdict.INCONCLUSIVE, Why.HIDDEN_UPDATE, facts)
    return Finding("given", Verdict.NOISE, Why.WITHIN_LIMIT, facts)


def _at(site: Site, like: tuple[Array, Array], case: Case) -> tuple[Array, Array] | None:
    """Both sides' tensors of another site of the same parameter."""
    item = case.items.get(site)
    if item is None or item.measurement is None:
        return None
    reference, candidate = case.load(item.pair)
    return (reference, candidate) if reference.shape == like[0].shape == candidate.shape else None


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
    before = [item for item in case.items if item._replace(step=site.step) == site and item.step < site.step]
    return max((one.step for one in before if (now := last(chains, one)) and now.verdict in CLEAN), default=None)


def local(case: Case, chains: Chains) -> Findings:
    """Pairs that differ by no more than two roundings of one number differ by; all others are in doubt."""
    return {item.pair.site: _local(item, case) for item in undecided(case, chains)}


def _local(item: Measured, case: Case) -> Finding:
    site, measured = item.pair.site, item.measurement
    assert measured is not None
    if not measured.nonfinite_agree:
        keys = "nan_reference", "inf_reference", "nan_candidate", "inf_candidate"
        return Finding("local", Verdict.DRIFT, Why.NON_FINITE, {key: getattr(measured, key) for key in keys})
    if measured.compared == 0:
        nothing = {"count": measured.count, "of": measured.count}
        return Finding("local", Verdict.NOT_COMPARABLE, Why.NAN_ON_BOTH, nothing)
    if item.is_integer:
        counted = {"differing": measured.differing, "count": measured.count}
        return Finding("local", Verdict.INCONCLUSIVE, Why.DOUBT, counted)
    if item.pair.tolerance is not None:
        return _tolerated("local", item)
    if site in case.truths:
        return case.truths[site].finding
    unit = case.unit(item.pair)
    facts: dict[str, Any] = {"error": measured.rel_l2, "limit": CLEAR * unit}
    if item.parts is not None and is_clear(item.parts, unit) and item.zeros_agree:  # what is cut off is no rounding
        return Finding("local", Verdict.NOISE, Why.CLEAR, facts)
    return Finding("local", Verdict.INCONCLUSIVE, Why.DOUBT, facts)


def _tolerated(by: str, item: Measured) -> Finding:
    """A pair with a tolerance of its own, which a map gives it."""
    assert item.pair.tolerance is not None
    assert item.measurement is not None
    allowed, error = item.pair.tolerance.relative, item.measurement.rel_l2
    facts = {"error": error, "limit": allowed, "source": item.pair.tolerance.source}
    if (error or 0.0) <= allowed:  # None where nothing is finite, which is for another pass to say
        return Finding(by, Verdict.NOISE, Why.WITHIN_TOLERANCE, facts)
    return Finding(by, Verdict.DRIFT, Why.BEYOND_TOLERANCE, facts)
