"""Masks of keys that are off by one: every stretch of seen keys begins or ends one key sooner or later."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Seen = NDArray[np.bool_]


def moved_edges(seen: Seen) -> Iterator[tuple[str, Seen]]:
    """Which keys (..., keys) are seen where an edge of what is seen is moved by one key, and what that is.

    What lies beyond the ends may count as seen, as hidden, or as what is at the other end.
    """
    yield "one key too many is seen, behind the others", seen | _shifted(seen, 1, False)
    yield "one key too many is seen, before the others", seen | _shifted(seen, -1, False)
    for beyond in (True, False):
        before, after = _shifted(seen, 1, beyond), _shifted(seen, -1, beyond)
        yield "the last key that is not hidden is hidden too", seen & after
        yield "the first key that is not hidden is hidden too", seen & before
        yield "the mask is laid one key too far", before
        yield "the mask is laid one key too early", after
    yield "the mask is laid one key too far, around the end", np.roll(seen, 1, axis=-1)
    yield "the mask is laid one key too early, around the end", np.roll(seen, -1, axis=-1)


def _shifted(seen: Seen, step: int, beyond: bool) -> Seen:
    """Whether the key before (or after, with -1) is seen."""
    out = np.full_like(seen, beyond)
    if step > 0:
        out[..., 1:] = seen[..., :-1]
    else:
        out[..., :-1] = seen[..., 1:]
    return out
