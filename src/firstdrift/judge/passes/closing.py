"""The last passes: what is left open after all, and where blame moves once every pair has its verdict."""

from __future__ import annotations

from math import sqrt

import numpy as np

from ...core.sites import Site, is_inside
from ..case import Case, Chains, Findings, decided
from ..measure.result import DRIFTS, Finding, Verdict, Why
from ..replay.programs import is_torch_here


def cancelled(case: Case, chains: Chains) -> Findings:
    """Pairs that are within their limit for the size of their supposed terms alone, and beyond it for their own."""
    found: dict[Site, Finding] = {}
    for site in decided(chains, Why.WITHIN_LIMIT):
        measured, facts = case.items[site].measurement, chains[site][-1].facts
        if measured is None or measured.rel_l2 is None or case.items[site].update is not None:
            continue
        error = facts["error"]
        if error is not None and error <= facts["limit"] < measured.rel_l2 and "where" not in facts:
            facts = {**facts, "error": measured.rel_l2}
            found[site] = Finding("cancelled", Verdict.INCONCLUSIVE, Why.UNTOLD, facts)
    return found


def untested(case: Case, chains: Chains) -> Findings:
    """Weights that differ, where all that the model gives is what noise explains, but torch is not here to run what
    would say whether they are another way to store the same."""
    weights = decided(chains, Why.OTHER_WEIGHT)
    if not weights or is_torch_here():
        return {}
    outputs = [site for site in chains if site.phase in ("fwd", "loss") and not site.port.startswith("in.")]
    given = [site for site in outputs if not case.graph.consumers(site)]
    if not given or not all(_is_within(site, case) for site in given):
        return {}
    return {site: Finding("untested", Verdict.INCONCLUSIVE, Why.UNTESTED, chains[site][-1].facts) for site in weights}


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


def edges(case: Case, chains: Chains) -> Findings:
    """Drifts of what modules are fed, named at the innermost modules that read it: there it changed on its way."""
    found: dict[Site, Finding] = {}
    for site, chain in chains.items():
        now = chain[-1]
        if now.verdict is not Verdict.DRIFT or site.phase != "fwd" or not site.port.startswith("in."):
            continue
        reader = _innermost(site, case, chains)
        if reader is None:
            continue
        if chains[reader][-1].verdict is not Verdict.DRIFT:
            found[reader] = Finding("edges", now.verdict, now.why, {**now.facts, "edge": site})
        found[site] = Finding("edges", Verdict.INHERITED, Why.READ_INSIDE, {**now.facts, "from": reader})
    return found


def _innermost(site: Site, case: Case, chains: Chains) -> Site | None:
    """The innermost module inside another that is handed the other's input as it is; the first of several."""
    shape = case.items[site].pair.reference.shape
    inside = [
        other for other, chain in chains.items()
        if chain[-1].verdict in (Verdict.DRIFT, Verdict.INHERITED) and other.phase == "fwd"
        and other.port.startswith("in.") and other.step == site.step
        and other.name != site.name and is_inside(other.name, site.name)
        and case.items[other].measurement is not None and case.items[other].pair.reference.shape == shape
    ]  # fmt: skip
    inside.sort(key=lambda one: -one.name.count("."))
    return next((one for one in inside if _is_handed_on(one, site, case)), None)


def _is_handed_on(reader: Site, site: Site, case: Case) -> bool:
    """Whether both sides hand on the same numbers."""
    pairs = zip(case.load(case.items[reader].pair), case.load(case.items[site].pair), strict=True)
    return all(np.array_equal(read.ravel(), given.ravel()) for read, given in pairs)


def without_source(case: Case, chains: Chains) -> Findings:
    """Where nothing drifts, nobody knows what a pair has inherited that no replay has cleared."""
    if any(chain[-1].verdict in DRIFTS for chain in chains.values()):
        return {}
    found: dict[Site, Finding] = {}
    for site, chain in chains.items():
        if chain[-1].verdict is Verdict.INHERITED:
            cleared = any(finding.why is Why.WITHIN_DRAWS for finding in chain)
            why, verdict = (Why.AMPLIFIED, Verdict.NOISE) if cleared else (Why.SOURCELESS, Verdict.INCONCLUSIVE)
            found[site] = Finding("inheritance", verdict, why, chain[-1].facts)
    return found
