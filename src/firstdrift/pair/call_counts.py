"""What one side recorded less often than the other: one of several calls, one of two gradients that are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..core.records import Record
from ..core.sites import Site, in_words
from ..core.traces import Array, Trace
from .arrangements import agrees

Sites = Mapping[Site, Record]


def recorded_calls(
    of_reference: Sites, of_candidate: Sites, reference: Trace, candidate: Trace
) -> Iterator[tuple[Site, Site]]:  # fmt: skip
    """Outputs of the candidate's calls that equal another call of the reference, and no call of the same number."""
    calls: dict[Site, list[Site]] = {}
    for site, record in of_reference.items():
        if site.phase == "fwd" and not site.port.startswith("in.") and record.at is not None:
            calls.setdefault(site._replace(call=0), []).append(site)
    for first, several in calls.items():
        others = [first._replace(call=site.call) for site in several if site in of_candidate]
        if not 0 < len(others) < len(several) or any(of_candidate[other].at is None for other in others):
            continue
        made = {site: reference.array(of_reference[site]) for site in several}
        for other in others:
            array = candidate.array(of_candidate[other])
            same = [site for site, mine in made.items() if _is_same(mine, array)]
            if len(same) == 1 and same[0] != other:
                yield same[0], other


def _is_same(reference: Array, candidate: Array) -> bool:
    return reference.shape == candidate.shape and agrees(reference, candidate, ())


def said_call(site: Site) -> str:
    """A call for people, its number always said."""
    return f"call {site.call} of {in_words(site._replace(call=0))}"


def is_unscaled(trace: Trace, seen: Record, raw: Record) -> bool:
    """Whether the optimizer saw the very gradient."""
    if seen.at is None or raw.at is None or (seen.dtype, seen.shape) != (raw.dtype, raw.shape):
        return False
    return seen.at == raw.at or bool(np.array_equal(trace.array(seen), trace.array(raw)))
