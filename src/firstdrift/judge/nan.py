"""NaN on both sides: nothing was compared there, so that it is never green."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial

from ..compare.result import CLEAN, Finding, Verdict, Why
from ..sites import Site
from .case import Case, Chains, Findings, Pass

BY = "nan"


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
            found[site] = Finding(BY, Verdict.NOT_COMPARABLE, Why.NAN_ON_BOTH, facts)
    return found


def _is_allowed(site: Site, allowed: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for name in (site.name, f"{site.name}.{site.port}") for glob in allowed)
