"""First of all: which pairs can be compared at all. NaN on both sides is never green, for nothing was compared
there.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial

from ...core.sites import Site
from ..case import Case, Chains, Findings, Pass
from ..measure.measuring import Measured
from ..measure.result import CLEAN, Finding, Verdict, Why

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


BY_NAN = "nan"


def refuse_nan(allowed: tuple[str, ...]) -> Pass:
    """A pass: pairs that are clean where they are finite, and NaN elsewhere on both sides, cannot be compared, unless a
    glob names them."""
    return partial(_refuse, allowed)


def _refuse(allowed: tuple[str, ...], case: Case, chains: Chains) -> Findings:
    found: dict[Site, Finding] = {}
    for site, chain in chains.items():
        measured = case.items[site].measurement if site in case.items else None
        if measured is None or chain[-1].verdict not in CLEAN or _is_allowed(site, allowed):
            continue
        count = min(measured.nan_reference, measured.nan_candidate)
        if count:
            facts = {"count": measured.nan_reference, "of": measured.count}
            found[site] = Finding(BY_NAN, Verdict.NOT_COMPARABLE, Why.NAN_ON_BOTH, facts)
    return found


def _is_allowed(site: Site, allowed: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for name in (site.name, f"{site.name}.{site.port}") for glob in allowed)
