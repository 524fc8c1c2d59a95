"""First of all: which pairs can be compared at all."""

from __future__ import annotations

from ..compare.measuring import Measured
from ..compare.result import Finding, Verdict, Why
from ..sites import Site
from .case import Case, Chains, Findings

BY = "comparable"


def comparable(case: Case, chains: Chains) -> Findings:
    """Pairs without two tensors of one shape and kind, and pairs that are the same bits."""
    found: dict[Site, Finding] = {}
    for site, item in case.items.items():
        finding = _of(item)
        if finding is not None:
            found[site] = finding
    return found


def _of(item: Measured) -> Finding | None:
    if item.problem is not None:
        return Finding(BY, Verdict.NOT_COMPARABLE, Why.PROBLEM, {"problem": item.problem})
    if item.absent is not None:
        return Finding(BY, item.absent.verdict, item.absent.why, {"said": item.absent.said})
    assert item.measurement is not None
    if item.measurement.bit_equal:
        return Finding(BY, Verdict.SAME, Why.BIT_EQUAL if item.measurement.count else Why.EMPTY)
    return None
