"""A float64 run as the third party: which of two sides is further from the truth than rounding explains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .._kernels import measure
from ..compare.measuring import Measured, load_pair
from ..compare.pairs import ReconcileError
from ..dtypes import roundoff
from ..sites import Site
from ..traces import Trace
from .conditioning import well_conditioned

# Two correct builds were measured to differ in their distance from float64 by a factor of 1.95; small tensors by more.
FACTORS = ((10, 16.0), (1000, 8.0))
FACTOR = 4.0
STORED = 2.0  # roundings of the stored result, on top


@dataclass(frozen=True, slots=True)
class Truth:
    """Distances from the truth, relative to its norm, and how far the candidate may be."""

    reference: float
    candidate: float
    limit: float
    reference_suspect: bool


def ask(measured: Iterable[Measured], reference: Trace, candidate: Trace, truth: Trace) -> dict[Site, Truth]:
    """What the truth says of every float pair that it has, too; where the reference is far from it in few rows or
    columns, of all others."""
    truths: dict[Site, Truth] = {}
    for item in measured:
        site = item.pair.reference.site
        if item.measurement is None or item.measurement.bit_equal or item.is_integer or site not in truth:
            continue
        if truth[site].at is None or truth[site].shape != item.pair.reference.shape:
            continue
        try:
            ours, theirs = load_pair(item.pair, reference, candidate)
            exact, _ = load_pair(item.pair, truth, candidate)
        except ReconcileError:
            continue
        far_ours = measure(exact, ours, full=False)
        far_theirs = measure(exact, theirs, full=False)
        if far_ours.rel_l2 is None or far_theirs.rel_l2 is None or not far_theirs.nonfinite_agree:
            continue
        said = truths[item.pair.site] = _truth(item, far_ours.rel_l2, far_theirs.rel_l2)
        if said.candidate > said.limit:
            continue
        for part in well_conditioned(exact, theirs, (exact, ours), None, by_chance=True):
            alone = _truth(item, part.noise, part.error)
            if alone.candidate > alone.limit:
                truths[item.pair.site] = alone
    return truths


def _truth(item: Measured, ours: float, theirs: float) -> Truth:
    units = roundoff(item.pair.reference.dtype), roundoff(item.pair.candidate[0].dtype)
    factor = next((factor for few, factor in FACTORS if item.count <= few), FACTOR)
    coarser = max(1.0, units[1] / units[0]) if units[0] else 1.0  # a candidate of a shorter dtype may be further off
    limit = factor * ours * coarser + STORED * units[1]
    suspect = ours > factor * theirs + STORED * units[0]
    return Truth(ours, theirs, limit, suspect)
