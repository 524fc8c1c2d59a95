"""Stale buffers: consecutive outputs that are the same bytes although something was computed between them."""

from __future__ import annotations

import numpy as np

from ..core.records import Record
from ..core.sites import Site
from ..core.traces import Trace


def repeated_outputs(trace: Trace) -> list[tuple[Site, Site]]:
    """Pairs of consecutive forward outputs that are equal bit for bit, of modules that have weights of their own.

    A module without weights may well return what it was given (dropout in evaluation, a ReLU of positive values), and
    a container what its last child did, as its producers say. A constant output proves nothing.
    """
    weighted = {record.site.name for record in trace if record.site.phase in ("weight", "grad", "weight_after")}
    previous: dict[tuple[int, int | None], Record] = {}
    found = []
    for record in trace:
        site = record.site
        if site.phase != "fwd" or site.port.startswith("in.") or record.at is None or site.name not in weighted:
            continue
        before = previous.get((site.step, site.sample))
        previous[site.step, site.sample] = record
        if before is None or before.site.name == site.name or before.site in (record.producers or ()):
            continue
        if _repeats(trace, before, record):
            found.append((before.site, site))
    return found


def _repeats(trace: Trace, before: Record, record: Record) -> bool:
    if (before.dtype, before.shape) != (record.dtype, record.shape):
        return False
    reference, candidate = (
        np.ascontiguousarray(trace.array(site)).reshape(-1).view(np.uint8) for site in (before, record)
    )
    return reference.size > 0 and np.array_equal(reference, candidate) and bool(np.any(reference != reference[0]))
