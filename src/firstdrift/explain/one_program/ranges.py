"""Numbers beyond the range of the precision that a run had, where the reference's calls keep within it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from ...core.sites import Site
from ...judge.replay.replays import Replays
from ...program.interpreter import NotReplayableError
from ...program.reruns import Rerun
from .around import MOVES, Around
from .values import line_of


def beyond_range(replays: Replays, site: Site) -> str | None:
    """What of the candidate's calls gives infinity or zero where float64, on the same numbers, does not."""
    with suppress(NotReplayableError), replays.running():
        candidate, reference = replays.own_rerun(site, exact=False), replays.rerun(site, exact=False)
        if candidate is None or reference is None:
            return None
        if next(_lost(reference), None) is not None:
            return None  # so does the reference
        return next((_told(around, said) for around, said in _lost(candidate)), None)
    return None


def _lost(rerun: Rerun) -> Iterator[tuple[Around, str]]:
    """The calls that leave the range, with what they give."""
    for number in rerun.calls:
        around = Around(rerun, number)
        if around.kind != "f" or around.op in MOVES:
            continue
        found, wide = np.asarray(rerun.array(around.result), np.float64), rerun.alone(number)
        if wide is None or wide.shape != found.shape:
            continue
        infinite = int(np.count_nonzero(np.isinf(found) & np.isfinite(wide)))
        zero = int(np.count_nonzero((found == 0) & (wide != 0)))
        if infinite or zero:
            yield around, f"{infinite} infinities" if infinite else f"{zero} zeros"


def _told(around: Around, said: str) -> str:
    line = line_of(around.rerun, around.number)
    where = f" ({line})" if line else ""
    return f"{around.written}{where} leaves the range of its dtype: it gives {said} where float64 gives other numbers"
