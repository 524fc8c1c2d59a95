"""What is little beside its terms: noise of these may be all of it, if a replay has shown that it is.

The limit of a sum that cancels is that of its terms. Where nobody said what these are, their size is a guess from what
the site was computed from, and a guess is no proof.
"""

from __future__ import annotations

from ..compare.result import Finding, Verdict, Why
from ..sites import Site
from .case import Case, Chains, Findings, decided

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
