"""What the reference's program says of the pairs that the one pass over their bytes left in doubt."""

from __future__ import annotations

from dataclasses import replace

from ...core.sites import Site
from ..case import Case, Chains, Findings, decided
from ..measure.measuring import Measured
from ..measure.result import Finding, Verdict, Why
from ..replay.introducing import Introduced, introduced_at
from ..replay.replays import MOST_ELEMENTS, Replays

BY = "replay"
CANCELS = 16.0  # times its own size, the terms of what cancels


def replayed(case: Case, chains: Chains) -> Findings:
    """What every operation in doubt added to what came in.

    Behind a drift all differ, and the nearest say whether it is the only one: further ones are left to the limits.
    """
    found: dict[Site, Finding] = {}
    if case.replays is None:
        return found
    left, drifted = MOST_ELEMENTS, False
    with case.replays.running():
        for site in decided(chains, Why.DOUBT):
            pair = case.items[site].pair
            left -= case.replays.work(pair.reference.site) if drifted else 0
            if left < 0:
                break
            own = introduced_at(pair, case.replays, case.unit(pair))
            if own is not None:
                drifted |= own.beyond
                if own.undecided is Why.INVISIBLE and _cancels(case.items[site], case):
                    own = replace(own, undecided=None)
                found[site] = _finding(own, pair.reference.site, case.replays)
    return found


def _cancels(item: Measured, case: Case) -> bool:
    """Whether a tensor is the little that is left of far larger terms: what is seen of it is seen beside these."""
    terms = case.limits.scale_of_terms(item, case.limits.producers(item.pair.site))
    return item.measurement is not None and CANCELS * item.measurement.norm_reference < terms


def _finding(own: Introduced, site: Site, replays: Replays) -> Finding:
    facts = {
        "error": own.error, "limit": own.limit, "where": own.where, "times": own.times, "draws": own.draws,
        "inherited": own.inherited, "inferred": own.inferred, "source": own.source, "seen": own.seen,
        "noise": own.noise,
    }  # fmt: skip
    if own.undecided is not None:
        return Finding(BY, Verdict.INCONCLUSIVE, own.undecided, {**facts, "said": own.said})
    if not own.beyond:
        return Finding(BY, Verdict.NOISE, Why.WITHIN_DRAWS, facts)
    start = replays.given(site)
    unseen = replays.unseen(site)
    is_between = any(other.phase == site.phase for other in unseen)
    between = (start[-1] if start else None, site) if is_between else None
    return Finding(BY, Verdict.DRIFT, Why.INTRODUCED, {**facts, "between": between, "unseen": len(unseen)})
