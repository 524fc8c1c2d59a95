"""Numbers that a shorter format has made: they lie on its grid, or their error is that of products in it.

Asked of the first drift alone, whose inputs are clean: what comes behind it is off for many reasons.
"""

from __future__ import annotations

from ..apriori.grids import NAMES, coarser_grid
from ..apriori.rungs import coarser_rung
from ..case import Case, Chains, Findings
from ..measure.measuring import Measured
from ..measure.result import DIRTY, Finding, Verdict, Why

BY = "shorter"
_ASKED = frozenset({Why.INTRODUCED, Why.BEYOND_LIMIT, Why.FAR_FROM_TRUTH})


def shorter(case: Case, chains: Chains) -> Findings:
    """The first drift, where it is the rounding of a format that is shorter than the one declared."""
    first = next((site for site in case.items if site in chains and chains[site][-1].verdict in DIRTY), None)
    if first is None or chains[first][-1].why not in _ASKED:
        return {}
    item = case.items[first]
    if item.is_integer or item.measurement is None or first.phase in ("weight_after", "input", "weight"):
        return {}
    finding = _by_numbers(item, case, chains[first][-1])
    return {} if finding is None else {first: finding}


def _by_numbers(item: Measured, case: Case, drift: Finding) -> Finding | None:
    error = float(drift.facts.get("error") or 0.0)
    reference, candidate = case.load(item.pair)
    if (dtype := coarser_grid(reference, candidate, error)) is not None:
        facts = {**drift.facts, "dtype": dtype, "name": NAMES[dtype], "declared": item.pair.candidate[0].dtype}
        return Finding(BY, Verdict.PRECISION, Why.SHORTER_GRID, facts)
    rung = coarser_rung(item, case.limits, case.load)
    if rung is None:
        return None
    facts = {**drift.facts, "rung": rung.name, "label": rung.label, "declared": item.pair.candidate[0].dtype}
    return Finding(BY, Verdict.PRECISION, Why.SHORTER_RUNG, facts)
