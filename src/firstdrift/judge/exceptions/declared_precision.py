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
from ...program.casts import dtypes_of, runs_in, written_casts
from ..case import Case
from ..measure.measuring import unit_of
from ..measure.result import Finding, Verdict, Why
from ..noise import excess_of
from ..replay.introducing import DRIFT, expected_at, found_at
from ..replay.replays import Replays

BY = "precision"


def declared_precision(site: Site, case: Case, replays: Replays) -> Finding | None:
    """Whether the candidate's own calls, rounded as they say, come to what it has."""
    item, pair = case.items[site], case.items[site].pair
    if item.is_integer or item.measurement is None or site.phase in ("weight_after", "input", "weight"):
        return None
    made, unit = pair.reference.site, case.unit(pair)
    own, calls = replays.run_own(made), replays.own_cut(made)
    expected, candidate = expected_at(pair, replays), found_at(pair, replays)
    if own is None or calls is None or expected is None or candidate is None:
        return None
    if not own.shape == expected.shape == candidate.shape:
        return None
    meant = excess_of(expected, own, unit, lambda seed: replays.drawn(made, seed))
    if meant is None or meant.times > DRIFT:
        return None
    left = excess_of(expected, candidate, unit, lambda seed: _rounded(expected, own, replays.own_drawn(made, seed)))
    if left is None or left.times > DRIFT or left.whole >= 1:
        return None
    reference = replays.made(made)
    most = runs_in(calls[0])
    declared = max(unit_of(pair), roundoff(most))  # of what it stores, or of most of its products
    written = written_casts(*calls) - (frozenset() if reference is None else written_casts(*reference))
    written |= {name for name in dtypes_of(*calls) if roundoff(name) > declared}
    facts = {"error": left.error, "limit": left.limit, "draws": left.draws, "proof": "replayed"}
    undeclared = {name for name in written if roundoff(name) > unit}  # a cast to what it stores takes nothing
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
