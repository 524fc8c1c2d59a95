"""Numbers that a shorter format has made: they lie on its grid, and the reference's do not.

Asked of the first drift alone, whose inputs are clean: what comes behind it is off for many reasons.
"""

from __future__ import annotations

import numpy as np

from ...core.dtypes import UNIT_ROUNDOFF
from ...core.traces import Array
from ..apriori.ladder import SHORT_LIMIT
from ..case import Case, Chains, Findings
from ..measure.result import DIRTY, Finding, Verdict, Why

BY = "shorter"
SAMPLE = 1 << 20
ON_GRID = 0.999  # of the candidate's numbers, at least
OFF_GRID = 0.5  # of the reference's, at most: integers and the like lie on every grid
# How many of the last bits a number leaves zero that went through a shorter format, coarsest first.
ZERO_BITS = {"float32": {"bf16": 16, "f16": 13}, "float64": {"bf16": 45, "f16": 42, "f32": 29}}
_NAMES = {"bf16": "bfloat16", "f16": "float16 or TF32", "f32": "float32"}
_ASKED = frozenset({Why.INTRODUCED, Why.BEYOND_LIMIT, Why.FAR_FROM_TRUTH})


def shorter(case: Case, chains: Chains) -> Findings:
    """The first drift, where its numbers were rounded to a format that is shorter than the one declared."""
    first = next((site for site in case.items if site in chains and chains[site][-1].verdict in DIRTY), None)
    if first is None or chains[first][-1].why not in _ASKED:
        return {}
    item, facts = case.items[first], chains[first][-1].facts
    if item.is_integer or item.measurement is None or first.phase in ("weight_after", "input", "weight"):
        return {}
    dtype = coarser_grid(*case.load(item.pair), float(facts.get("error") or 0.0))
    if dtype is None:
        return {}
    facts = {**facts, "dtype": dtype, "name": _NAMES[dtype], "declared": item.pair.candidate[0].dtype}
    return {first: Finding(BY, Verdict.PRECISION, Why.SHORTER_GRID, facts)}


def coarser_grid(reference: Array, candidate: Array, error: float) -> str | None:
    """The shorter format that explains an error: the candidate lies on its grid, the reference does not."""
    if reference.dtype != candidate.dtype:
        return None
    for dtype, zeros in ZERO_BITS.get(candidate.dtype.name, {}).items():
        explains = error <= SHORT_LIMIT * UNIT_ROUNDOFF[dtype]
        if explains and _on_grid(candidate, zeros) >= ON_GRID and _on_grid(reference, zeros) <= OFF_GRID:
            return dtype
    return None


def _on_grid(array: Array, zeros: int) -> float:
    """The share of numbers other than zero whose last bits are zero."""
    bits = np.ascontiguousarray(array.reshape(-1)[:SAMPLE]).view(f"u{array.itemsize}").astype(np.uint64)
    bits = bits[bits != 0]
    return float(np.mean((bits & np.uint64((1 << zeros) - 1)) == 0)) if bits.size else 0.0
