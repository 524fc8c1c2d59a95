"""Whether the candidate undoes elsewhere what a setting of its own changes: a factor that stands in another module.

Both sides' calls run in float64 from the last tensors that are plainly the same on both, through everything that is
made otherwise; what is left is held against what the calls of the site alone come to.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import numpy as np

from ...core.arrays import wide
from ...core.sites import Site
from ...program.interpreter import NotReplayableError
from ..case import Case
from ..replay.replays import Replays
from .model_parts import FLOAT32, OUTWEIGHED


def is_undone(site: Site, case: Case, otherwise: AbstractSet[Site]) -> bool:
    """Whether the candidate's calls make what the reference's make at a site, through all that is made `otherwise`,
    although its own calls there do not: up to constants that float32 holds as one, and weights that were stored once
    more."""
    alone = case.replays
    if alone is None or alone.own is None:
        return False
    weights = frozenset(one for one in otherwise if one.phase == "weight")
    together = alone.starting(lambda one: one == site or one in weights or one not in otherwise, weights)
    by_itself, left = _apart(site, alone), _apart(site, together)
    if by_itself is None or left is None or OUTWEIGHED * left[0] > by_itself[0]:
        return False
    return bool(weights) or left[0] <= FLOAT32 * left[1]


def _apart(site: Site, replays: Replays) -> tuple[float, float] | None:
    """How far the two sides' calls are apart at a site, and how large that is; None where they cannot be run."""
    try:
        with replays.running():
            expected, found = replays.expected(site), replays.run_own(site)
    except NotReplayableError:
        return None
    if expected is None or found is None or expected.shape != found.shape:
        return None
    return float(np.linalg.norm(wide(expected) - wide(found))), float(np.linalg.norm(wide(expected)))
