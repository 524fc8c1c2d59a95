"""What the reference's program says of the pairs that one pass over their bytes left in doubt, and what else explains
an error beyond noise: near-ties, fills, shorter formats, equal functions; each with its proof.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...core.sites import Site
from ...program.interpreter import NotReplayableError
from ..case import Case, Chains, Findings, decided
from ..exceptions.declared_precision import declared_precision
from ..exceptions.equal_functions import EqualFunctions
from ..exceptions.fills import fill
from ..exceptions.near_ties import near_tie
from ..measure.measuring import Measured
from ..measure.result import Finding, Verdict, Why
from ..replay.introducing import Introduced, introduced_at
from ..replay.replays import MOST_ELEMENTS, Replays

BY = "replay"
CANCELS = 16.0  # times its own size, the terms of what cancels


Exemption = Callable[[Site, Case, Replays], Finding | None]
# What may explain a drift, by what decided that it is one; and all of these may be a part that computes the same.
EXCEPTIONS: Mapping[Why, Sequence[Exemption]] = {
    Why.OTHER_WEIGHT: (),
    Why.INTRODUCED: (declared_precision, fill, near_tie),
    Why.NON_FINITE: (fill,),
}


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


def excepted(case: Case, chains: Chains) -> Findings:
    """Exceptions, in causal order, up to the first drift that is none: what comes behind it is not asked."""
    found: dict[Site, Finding] = {}
    replays = case.replays
    if replays is None:
        return found
    functions = EqualFunctions(case, chains, replays)
    with replays.running():
        for site in decided(chains, Why.NEXT_TO_NOISE, Why.MORE_DIGITS):
            own = _first_of((declared_precision,), site, case, replays)
            if own is not None and own.verdict is Verdict.NOISE:
                found[site] = own
        for site in decided(chains, *EXCEPTIONS):
            if site in found:
                continue
            explained = _first_of(EXCEPTIONS[chains[site][-1].why], site, case, replays)
            if explained is None or explained.verdict is Verdict.PRECISION:  # something may make up for its rounding
                found |= functions.proven(site) or ({} if explained is None else {site: explained})
            else:
                found[site] = explained
            if site not in found or found[site].verdict is Verdict.PRECISION:
                break
    return found


def _first_of(exceptions: Sequence[Exemption], site: Site, case: Case, replays: Replays) -> Finding | None:
    """The first exception that holds; None where none does, or where calls cannot be made."""
    try:
        return next((found for one in exceptions if (found := one(site, case, replays)) is not None), None)
    except NotReplayableError:
        return None
