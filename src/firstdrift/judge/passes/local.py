"""What one pass over its bytes tells of a pair: clear, or in doubt."""

from __future__ import annotations

from ..case import Case, Chains, Findings, undecided
from ..measure.measuring import Measured
from ..measure.result import Finding, Verdict, Why
from ..measure.scales import CLEAR, is_clear
from ..truth import by_truth

BY = "local"


def local(case: Case, chains: Chains) -> Findings:
    """Pairs that differ by no more than two roundings of one number differ by; all others are in doubt."""
    return {item.pair.site: _of(item, case) for item in undecided(case, chains)}


def _of(item: Measured, case: Case) -> Finding:
    site, measured = item.pair.site, item.measurement
    assert measured is not None
    if not measured.nonfinite_agree:
        return Finding(BY, Verdict.DRIFT, Why.NON_FINITE, _non_finite(item))
    if measured.compared == 0:
        return Finding(BY, Verdict.NOT_COMPARABLE, Why.NAN_ON_BOTH, {"count": measured.count, "of": measured.count})
    if item.is_integer:
        counted = {"differing": measured.differing, "count": measured.count}
        return Finding(BY, Verdict.INCONCLUSIVE, Why.DOUBT, counted)
    if item.pair.tolerance is not None:
        return _tolerated(item)
    if site in case.truths:
        return by_truth(case.truths[site])
    unit = case.unit(item.pair)
    facts = {"error": measured.rel_l2, "limit": CLEAR * unit}
    if item.parts is not None and is_clear(item.parts, unit) and item.zeros_agree:  # what is cut off is no rounding
        return Finding(BY, Verdict.NOISE, Why.CLEAR, facts)
    return Finding(BY, Verdict.INCONCLUSIVE, Why.DOUBT, facts)


def _tolerated(item: Measured) -> Finding:
    assert item.pair.tolerance is not None
    assert item.measurement is not None
    allowed, error = item.pair.tolerance.relative, item.measurement.rel_l2
    facts = {"error": error, "limit": allowed, "source": item.pair.tolerance.source}
    if error is not None and error <= allowed:
        return Finding(BY, Verdict.NOISE, Why.WITHIN_TOLERANCE, facts)
    return Finding(BY, Verdict.DRIFT, Why.BEYOND_TOLERANCE, facts)


def _non_finite(item: Measured) -> dict[str, int]:
    found = item.measurement
    assert found is not None
    return {
        "nan_reference": found.nan_reference, "inf_reference": found.inf_reference,
        "nan_candidate": found.nan_candidate, "inf_candidate": found.inf_candidate,
    }  # fmt: skip
