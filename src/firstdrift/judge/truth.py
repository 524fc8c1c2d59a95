"""A float64 run as the third party: which of two sides is further from the truth than rounding explains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..core.dtypes import roundoff
from ..core.sites import Site
from ..core.traces import Array, Trace
from ..kernels import measure
from ..pair.pairs import ReconcileError
from .measure.measuring import Measured, load_recorded
from .measure.result import Finding, Verdict, Why
from .noise import statistics_of

# Two correct builds were measured to differ in their distance from float64 by a factor of 1.95; small tensors by more.
FACTORS = ((10, 16.0), (1000, 8.0))
FACTOR = 4.0
STORED = 2.0  # roundings of the stored result, on top


@dataclass(frozen=True, slots=True)
class Truth:
    """Distances from the truth, relative to its norm, and how far the candidate may be; `part` is the part of a tensor
    that is further from it than the reference's noise explains there, if one is."""

    reference: float
    candidate: float
    limit: float
    reference_suspect: bool
    part: str = ""

    @property
    def finding(self) -> Finding:
        """As close to the truth as the reference is, or in doubt: the reference may have been computed more
        precisely."""
        if self.candidate <= self.limit and not self.part:
            return Finding("truth", Verdict.NOISE, Why.NEAR_TRUTH, self.facts)
        return Finding("truth", Verdict.INCONCLUSIVE, Why.DOUBT, self.facts)

    @property
    def facts(self) -> dict[str, Any]:
        """What a reason says of it."""
        return {
            "candidate": self.candidate, "reference": self.reference, "limit": self.limit, "error": self.candidate,
            "suspect": self.reference_suspect, "part": self.part,
        }  # fmt: skip


def ask(measured: Iterable[Measured], reference: Trace, candidate: Trace, truth: Trace) -> dict[Site, Truth]:
    """What the truth says of every float pair that it has, too."""
    truths: dict[Site, Truth] = {}
    for item in measured:
        site = item.pair.reference.site
        if item.measurement is None or item.measurement.bit_equal or item.is_integer or site not in truth:
            continue
        if truth[site].at is None or truth[site].shape != item.pair.reference.shape:
            continue
        try:
            of_reference, of_candidate = load_recorded(item.pair, reference, candidate)
            exact, _ = load_recorded(item.pair, truth, candidate)
        except ReconcileError:
            continue
        said = _truth(item, exact, of_reference, of_candidate)
        if said is not None:
            truths[item.pair.site] = said
    return truths


def _truth(item: Measured, exact: Array, reference: Array, candidate: Array) -> Truth | None:
    far_reference, far_candidate = measure(exact, reference, full=False), measure(exact, candidate, full=False)
    if far_reference.rel_l2 is None or far_candidate.rel_l2 is None or not far_candidate.nonfinite_agree:
        return None
    units = roundoff(item.pair.reference.dtype), roundoff(item.pair.candidate[0].dtype)
    factor = next((factor for few, factor in FACTORS if item.count <= few), FACTOR)
    coarser = max(1.0, units[1] / units[0]) if units[0] else 1.0  # a candidate of a shorter dtype may be further off
    limit = factor * far_reference.rel_l2 * coarser + STORED * units[1]
    suspect = far_reference.rel_l2 > factor * far_candidate.rel_l2 + STORED * units[0]
    worst = statistics_of(exact, candidate, units[1], [reference])
    part = worst.where if worst.times > factor * coarser and worst.error > limit else ""
    return Truth(far_reference.rel_l2, far_candidate.rel_l2, limit, suspect, part)
