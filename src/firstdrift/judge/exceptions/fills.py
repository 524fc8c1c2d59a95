"""What a mask is filled with: any number so low that a softmax makes nothing of it.

Where both sides have such a number at the same places, it may be another one. That it makes no difference is tried: the
calls that read the tensor are run on the candidate's numbers, and on the same with the reference's fill. They must give
the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import wide
from ...core.sites import Site
from ...core.traces import Array
from ..case import Case
from ..measure.result import Finding, Verdict, Why
from ..noise import excess_of
from ..replay.introducing import DRIFT, expected_at, found_at
from ..replay.replays import Replays

BY = "fills"
NOTHING = 37.0  # by how much a score must be lower than another for its exponential to be less than float64 rounds
READERS = 4  # sites that are computed again, the first ones

Mask = NDArray[np.bool_]


def fill(site: Site, case: Case, replays: Replays) -> Finding | None:
    """Whether a pair differs in what it is masked with, and in nothing else."""
    pair, site = case.items[site].pair, case.items[site].pair.reference.site
    if pair.site.phase != "fwd" or pair.reference_steps or pair.candidate_steps:
        return None
    expected, candidate = expected_at(pair, replays), found_at(pair, replays)
    if expected is None or candidate is None or expected.shape != candidate.shape or candidate.dtype.kind not in "fV":
        return None
    masked = _filled(expected) & _filled(candidate) if candidate.ndim else np.zeros((), np.bool_)
    if not masked.any():
        return None
    refilled = np.where(masked, wide(expected), wide(candidate))

    def draw(seed: int) -> Array | None:
        drawn = replays.drawn(site, seed)
        return None if drawn is None or drawn.shape != masked.shape else np.where(masked, 0.0, wide(drawn))

    exact, found = np.where(masked, 0.0, wide(expected)), np.where(masked, 0.0, wide(candidate))
    rest = excess_of(exact, found.astype(candidate.dtype), case.unit(pair), draw)
    if rest is None or rest.times > DRIFT:
        return None
    readers = replays.readers(site)[:READERS]
    if not readers or not all(_gives_the_same(reader, site, refilled, replays) for reader in readers):
        return None
    facts = {
        "masked": int(masked.sum()), "count": int(masked.size), "readers": [str(one) for one in readers],
        "reference": float(np.min(wide(expected)[masked])), "candidate": float(np.min(wide(candidate)[masked])),
        "error": rest.error, "limit": rest.limit, "proof": "replayed",
    }  # fmt: skip
    return Finding(BY, Verdict.NOISE, Why.FILL, facts)


def _filled(array: Array) -> Mask:
    """The numbers of each row that a softmax over it makes nothing of, beside those that it makes something of."""
    numbers = wide(array)
    highest = np.max(np.where(np.isnan(numbers), -np.inf, numbers), axis=-1, keepdims=True)
    low: Mask = (numbers <= highest - NOTHING) & np.isfinite(highest)
    return low


def _gives_the_same(reader: Site, site: Site, refilled: Array, replays: Replays) -> bool:
    def tensors(wanted: Site) -> Array | None:
        return refilled if wanted == site else replays.counterparts.array(wanted)

    own, other = replays.run(reader, replays.counterparts.array), replays.run(reader, tensors)
    return own is not None and other is not None and np.array_equal(own, other)
