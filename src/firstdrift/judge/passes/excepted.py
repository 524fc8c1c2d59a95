"""What else explains an error beyond noise: near-ties, fills, shorter formats, equal functions; each with its proof.

Drifts are looked at in causal order until one is left that nothing explains: what comes behind it is not asked.
"""

from __future__ import annotations

from ...core.sites import Site
from ...program.interpreter import NotReplayableError
from ..case import Case, Chains, Findings, decided
from ..exceptions.declared_precision import declared_precision
from ..exceptions.equal_functions import EqualFunctions
from ..exceptions.fills import fill
from ..exceptions.near_ties import near_tie
from ..measure.result import Finding, Verdict, Why


def excepted(case: Case, chains: Chains) -> Findings:
    """Exceptions, up to the first drift that is none."""
    found: dict[Site, Finding] = {}
    if case.replays is None:
        return found
    functions = EqualFunctions(case, chains, case.replays)
    with case.replays.running():
        for site in decided(chains, Why.NEXT_TO_NOISE, Why.MORE_DIGITS):
            own = _declared(site, case)
            if own is not None and own.verdict is Verdict.NOISE:
                found[site] = own
        for site in decided(chains, Why.OTHER_WEIGHT, Why.INTRODUCED, Why.NON_FINITE):
            if site in found:
                continue
            explained = _of(site, case, chains[site][-1])
            if explained is None or explained.verdict is Verdict.PRECISION:  # something may make up for its rounding
                found |= functions.proven(site) or ({} if explained is None else {site: explained})
            else:
                found[site] = explained
            if site not in found or found[site].verdict is Verdict.PRECISION:
                break
    return found


def _declared(site: Site, case: Case) -> Finding | None:
    assert case.replays is not None
    try:
        return declared_precision(site, case, case.replays)
    except NotReplayableError:
        return None


def _of(site: Site, case: Case, drift: Finding) -> Finding | None:
    if drift.why is Why.OTHER_WEIGHT or case.replays is None:
        return None
    try:
        if drift.why is Why.NON_FINITE:
            return fill(site, case, case.replays)
        own = declared_precision(site, case, case.replays)
        return own or fill(site, case, case.replays) or near_tie(site, case, case.replays)
    except NotReplayableError:
        return None
