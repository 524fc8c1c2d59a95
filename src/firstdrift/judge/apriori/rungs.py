"""Which precision a run's products were computed in, from the errors that they introduce together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.dtypes import UNIT_ROUNDOFF, roundoff
from ...core.traces import Array
from ...pair.pairs import Pair
from ..measure.measuring import Measured
from .grids import looks_like_rounding
from .kinds import ELEMENTWISE, is_product, kind_of
from .ladder import ATTENTION_RUNGS, RUNGS, Rung, rung
from .limits import Limits


def coarser_rung(item: Measured, limits: Limits, load: Callable[[Pair], tuple[Array, Array]]) -> Rung | None:
    """The precision whose rung the errors of all products like this one sit on, while everything else is exact.

    One product is enough where nothing else comes near its rung; of several steps in one, as in attention, two must
    agree. A tensor that went wrong in part, or by an offset or a factor, is no matter of rounding.
    """
    pair, op = item.pair, item.pair.reference.op
    attends = kind_of(op) == "attention"
    if pair.site.phase != "fwd" or pair.site.port.startswith("in.") or not (attends or is_product(op)):
        return None
    rungs = ATTENTION_RUNGS if attends else RUNGS
    mine = _rung_of([item], limits, rungs)
    if mine is None or mine.levels or not looks_like_rounding(*load(pair)):
        return None
    clean = [one for site, one in limits.items.items() if site.phase == "fwd" and _has_clean_inputs(one, limits)]
    if any(
        kind_of(measured.pair.reference.op) in ELEMENTWISE and limits.is_beyond_local(measured) for measured in clean
    ):
        return None
    alike = [
        measured for measured in clean if (measured.pair.reference.op, measured.pair.site.port) == (op, pair.site.port)
    ]
    sure = not attends and mine.unit <= UNIT_ROUNDOFF["bf16"]
    return _rung_of(alike, limits, rungs) if len(alike) > 1 or sure else None


def _rung_of(items: Sequence[Measured], limits: Limits, rungs: Sequence[Rung]) -> Rung | None:
    """The rung that the errors of all these sites sit on."""
    errors, lengths = [], []
    for item in items:
        producers = limits.producers(item.pair.site)
        errors.append(limits.error_of(item, producers))
        lengths.append(limits.length(item.pair, kind_of(item.pair.reference.op), producers))
    dtypes = [(pair.reference.dtype, pair.candidate[0].dtype) for pair in (item.pair for item in items)]
    coarsest = max((dtype for both in dtypes for dtype in both), key=roundoff, default=None)
    return rung(errors, lengths, coarsest or "", rungs)


def _has_clean_inputs(item: Measured, limits: Limits) -> bool:
    """Whether a float site was computed from what shows no more than its own rounding."""
    inputs = [limits.items[site] for site in limits.producers(item.pair.site)]
    return _is_float(item) and not any(_is_float(measured) and limits.is_beyond_local(measured) for measured in inputs)


def _is_float(item: Measured) -> bool:
    return item.measurement is not None and not item.is_integer
