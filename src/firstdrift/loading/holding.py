"""Numbers in hand: what was checked is what will be written, whatever happens to its source in between."""

from __future__ import annotations

from threading import Lock

import numpy as np

from ..checkpoints.checkpoint import Array
from ..scratch import scratch

MOST_IN_MEMORY = 2 << 30  # bytes of all tensors together; more of them wait in files that vanish


class Hand:
    """Keeps arrays until they are written; several threads may give it theirs.

    `stable` says that nobody can write to the source meanwhile, so that its own memory is as good as a copy; `given`
    that the source is a table of arrays, whose memory is never ours.
    """

    def __init__(self, *, stable: bool, given: bool) -> None:
        self._stable = stable
        self._given = given
        self._room = MOST_IN_MEMORY
        self._lock = Lock()

    def keep(self, array: Array) -> Array:
        """The same numbers, where nobody changes them."""
        computed = not self._given and _is_numpys(array)  # dequantized, rounded or joined
        if self._stable and not computed:
            return array
        fits = self._fits(array.nbytes)
        if computed and fits:
            return array
        kept = scratch(array.shape, array.dtype, array.nbytes if fits else 0)
        kept[...] = array
        return kept

    def _fits(self, nbytes: int) -> bool:
        with self._lock:
            fits = nbytes <= self._room
            self._room -= nbytes if fits else 0
        return fits


def _is_numpys(array: Array) -> bool:
    """Whether an array lies in memory that numpy allocated, not in a mapping."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base is None
