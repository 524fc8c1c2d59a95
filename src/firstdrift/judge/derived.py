"""How far an optimizer may be off that derives its numbers in float32, where no program says how it derives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..core.dtypes import UNIT_ROUNDOFF, roundoff
from ..core.traces import Trace
from ..pair.pairs import Pair
from .measure.stated import optimizer_of

CANCELS = 1e3  # times as far off as a setting, 1 less it is, where none is on record: the usual 0.999
WAYS = 2  # in which a setting is rounded: as it is stored, and as its power is


def derived(pair: Pair, reference: Trace) -> float:
    """The relative error of an update, or of what an optimizer remembers, because 1 less a setting cancels."""
    said = {**optimizer_of(reference.header), **pair.reference.attrs}
    unit = min(roundoff(pair.reference.dtype, pair.candidate[0].dtype), UNIT_ROUNDOFF["f32"])
    cancels = [1 / (1 - value) for value in _floats(list(said.values())) if 0 < value < 1]
    return WAYS * unit * (sum(cancels) if cancels else CANCELS)


def _floats(item: Any) -> Iterator[float]:
    if isinstance(item, list | tuple):
        for one in item:
            yield from _floats(one)
    elif isinstance(item, float):
        yield item
