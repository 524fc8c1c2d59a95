"""Errors of calls that the candidate's own program makes in a shorter format.

What the candidate declares is no drift: its program was run under autocast, or says so in its dtypes. What its code
casts by itself, and the reference's does not, is less precise than it says.
"""

from __future__ import annotations

import numpy as np

from ...core.arrays import wide
from ...core.dtypes import roundoff
from ...core.sites import Site
from ...core.traces import Array
from ...pair.pairs import Pair
from ...program.casts import dtypes_of, runs_in, written_casts
from ..case import Case
from ..measure.result import Finding, Verdict, Why
from ..noise import excess_of
from ..replay.introducing import DRIFT, expected_at, found_at
from ..replay.replays import Replays

BY = "precision"


def declared_precision(site: Site, case: Case, replays: Replays) -> Finding | None:
    """Whether the candidate's own calls, rounded as they say, come to what it has."""
    item = case.items[site]
    if item.is_integer or item.measurement is None or site.phase in ("weight_after", "input", "weight"):
        return None
    return _own(item.pair, replays, case.unit(item.pair))


def _own(pair: Pair, replays: Replays, unit: float) -> Finding | None:
    site = pair.reference.site
    own = replays.own_expected(site)
    expected, candidate = expected_at(pair, replays), found_at(pair, replays)
    if own is None or expected is None or candidate is None or not own.shape == expected.shape == candidate.shape:
        return None
    meant = excess_of(expected, own, unit, lambda seed: replays.drawn(site, seed))
    if meant is None or meant.times > DRIFT:
        return None
    left = excess_of(expected, candidate, unit, lambda seed: _rounded(expected, own, replays.own_drawn(site, seed)))
    if left is None or left.times > DRIFT or left.whole >= 1:
        return None
    reference, other = replays.casts(site, written_casts)
    _, made = replays.casts(site, dtypes_of)
    written = (other - reference) | {name for name in made if roundoff(name) > _declared(pair, replays)}
    stored = max(replays.finest, roundoff(*(record.dtype for record in pair.candidate)))
    undeclared = {name for name in written if roundoff(name) > stored}  # a cast to what it stores takes nothing
    facts = {"error": left.error, "limit": left.limit, "draws": left.draws, "proof": "replayed"}
    if not undeclared:
        return Finding(BY, Verdict.NOISE, Why.DECLARED_PRECISION, facts)
    return Finding(BY, Verdict.PRECISION, Why.SHORTER_CALLS, {**facts, "dtype": max(undeclared, key=roundoff)})


def _rounded(expected: Array, own: Array, drawn: Array | None) -> Array | None:
    """What the candidate's calls lose by rounding, taken from what the reference's come to: what another formula adds
    is no rounding, even where there is as much of it."""
    if drawn is None:
        return None
    with np.errstate(invalid="ignore"):
        lost = np.where(drawn == own, 0.0, wide(drawn) - own)
    return wide(expected) + lost


def _declared(pair: Pair, replays: Replays) -> float:
    """The roundoff of the shortest format that the candidate says it computes in: that of what it stores, or of most of
    its products."""
    own = replays.own_site(pair.reference.site)
    step = None if own is None or replays.own is None else replays.own.program.steps.get(own.step)
    most = None if step is None else runs_in(step)
    return roundoff(*(record.dtype for record in pair.candidate), pair.reference.dtype, most)
