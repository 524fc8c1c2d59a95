"""What only a program could have told of weights that differ, where torch is not here to run it."""

from __future__ import annotations

from math import sqrt

from ...core.sites import Site
from ..case import Case, Chains, Findings, decided
from ..measure.result import Finding, Verdict, Why
from ..replay.programs import is_torch_here

BY = "untested"
_GIVEN = ("fwd", "loss")


def untested(case: Case, chains: Chains) -> Findings:
    """Weights that differ, where all that the model gives is what noise explains, but no program could be asked whether
    they are another way to store the same."""
    weights = decided(chains, Why.OTHER_WEIGHT)
    if not weights or is_torch_here():
        return {}
    outputs = [site for site in chains if site.phase in _GIVEN and not site.port.startswith("in.")]
    given = [site for site in outputs if not case.graph.consumers(site)]
    if not given or not all(_is_within(site, case) for site in given):
        return {}
    return {site: Finding(BY, Verdict.INCONCLUSIVE, Why.UNTESTED, chains[site][-1].facts) for site in weights}


def _is_within(site: Site, case: Case) -> bool:
    """Whether a tensor is the same but for noise, that of all that was computed before it among it: such errors add up
    like a random walk."""
    item = case.items.get(site)
    if item is None or item.measurement is None or not item.measurement.nonfinite_agree:
        return False
    before = sum(other.phase == "fwd" and other.step == site.step for other in case.items)
    producers = case.limits.producers(site)
    limit = case.limits.local(item, producers) * sqrt(1 + 2 * before)
    return item.measurement.bit_equal or case.limits.error_of(item, producers) <= limit
