"""Results that come to next to nothing: sums that cancel, and gradients of a parameter that has no effect."""

from __future__ import annotations

from math import prod, sqrt

from ..core.sites import Site
from .case import Case, Chains, Findings, decided
from .measure.measuring import Measured
from .measure.result import Finding, Verdict, Why

BY = "cancelled"


def cancelled(case: Case, chains: Chains) -> Findings:
    """Pairs that are within their limit for the size of their supposed terms alone, and beyond it for their own."""
    found: dict[Site, Finding] = {}
    for site in decided(chains, Why.WITHIN_LIMIT):
        measured, facts = case.items[site].measurement, chains[site][-1].facts
        if measured is None or measured.rel_l2 is None or case.items[site].update is not None:
            continue
        limit = float(facts["limit"])
        if facts["error"] is not None and facts["error"] <= limit < measured.rel_l2 and "where" not in facts:
            told = {**facts, "error": measured.rel_l2}
            found[site] = Finding(BY, Verdict.INCONCLUSIVE, Why.UNTOLD, told)
    return found


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
    back = [producer for producer in producers if producer.phase == "agrad"]
    fed = [producer for producer in producers if producer.phase in ("fwd", "input")]
    if back and fed:
        return (
            sum(_norm(one, case) / sqrt(_rows(one, case)) for one in back) * max(_norm(one, case) for one in fed) / size
        )
    beside = [one for one in case.items if one._replace(port=site.port) == site != one]
    return max((_norm(one, case) / sqrt(max(1, case.items[one].count)) for one in beside), default=0.0)


def _norm(site: Site, case: Case) -> float:
    measured = case.items[site].measurement
    return 0.0 if measured is None else measured.norm_reference


def _rows(site: Site, case: Case) -> int:
    return max(1, prod((case.items[site].pair.reference.shape or ())[:-1]))
