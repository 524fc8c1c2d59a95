"""The jump rule of training-step traces (1000 times the floor of its tier, above an absolute floor), kept for those
who are used to it: with NaN seen, both sides covered, gradients walked as they flow, and every drift marked.
"""

from __future__ import annotations

from functools import partial

from ..core.sites import Site
from .case import Case, Chains, Findings, Pass
from .measure.result import Finding, Verdict, Why

BY = "jump"
FACTOR = 1000.0
START = 1e-6


def by_jump(abs_floor: float) -> Pass:
    """The pass of the jump rule; what has no numbers keeps the verdict that it has."""
    return partial(_by_jump, abs_floor)


def _by_jump(abs_floor: float, case: Case, chains: Chains) -> Findings:
    floor, tier, drifted = START, None, False
    found: dict[Site, Finding] = {}
    for site, item in case.items.items():
        if (site.step, site.phase) != tier:
            floor, tier = START, (site.step, site.phase)
        measured = item.measurement
        if measured is None or measured.bit_equal or not measured.nonfinite_agree or item.is_integer:
            drifted |= site in chains and chains[site][-1].verdict is Verdict.DRIFT
            continue
        relative = measured.max_rel or 0.0
        beyond = float(measured.max_abs) > abs_floor and relative > FACTOR * floor
        if not beyond and relative < 1:
            floor = max(floor, relative)
        verdict = Verdict.NOISE if not beyond else Verdict.INHERITED if drifted else Verdict.DRIFT
        facts = {"largest": float(measured.max_abs), "error": relative, "limit": FACTOR * floor, "floor": floor}
        found[site] = Finding(BY, verdict, Why.JUMP if beyond else Why.NO_JUMP, facts)
        drifted |= beyond
    return found
