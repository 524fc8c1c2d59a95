"""Whether a drift is chance: both sides once more, with other random numbers. Asked only of drifts, it costs clean runs
nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp

from ..core.sites import Site
from ..core.traces import Array, Trace
from ..explain.labels import LABELS
from ..judge.measure.result import Cause
from ..kernels import measure
from .matching import Names
from .sides import Side, record

STABLE = 1.5e-6  # relative, by which two runs of one side may differ
OTHER = 7919  # added to the seed; any other would do


@dataclass(frozen=True)
class Reseeding:
    """Both sides, and what they recorded with the seed that was asked for, under the reference's names."""

    reference: Side
    candidate: Side
    names: Names
    reference_trace: Trace
    candidate_trace: Trace
    folder: Path

    @cached_property
    def again(self) -> tuple[Trace, Trace]:
        """Both sides as they are with another seed."""
        folder = Path(mkdtemp(prefix="seed-", dir=self.folder))
        one, other = (replace(side, seed=(side.seed or 0) + OTHER) for side in (self.reference, self.candidate))
        return record(one, folder / "reference", program=False), self.names.renamed(
            record(other, folder / "candidate", program=False)
        )

    def moves(self, site: Site, limit: float) -> float | None:
        """By how much the candidate's tensor changes with the seed where the reference's does not; None where it does
        not, or both do. Training is meant to be random."""
        if self.candidate.train or site.phase in ("weight", "input"):
            return None
        reference, candidate = self.again
        apart = _apart(self.candidate_trace, candidate, site)
        least = max(limit, STABLE)
        return apart if apart > least and _apart(self.reference_trace, reference, site) <= least else None


def by_chance(apart: float) -> Cause:
    """The cause of a drift that moves with the seed."""
    said = (
        f"the candidate's numbers change by {apart:.2g} with the random seed, and the reference's do not: something "
        "random, such as dropout, is active"
    )
    return Cause("nondeterministic", said, 0.95, LABELS["nondeterministic"].confirm, {"difference": apart})


def _apart(once: Trace, again: Trace, site: Site) -> float:
    """How far two runs of one side are apart; nothing where that cannot be said."""
    both = arrays_of(once, again, site)
    return 0.0 if both is None else measure(*both).rel_l2 or 0.0


def arrays_of(one: Trace, other: Trace, site: Site) -> tuple[Array, Array] | None:
    """Both tensors of a site in one dtype, where both traces have one of the same shape and kind."""
    if site not in one or site not in other or other[site].at is None or one[site].at is None:
        return None
    reference, candidate = one.array(site), other.array(site)
    if reference.shape != candidate.shape or (reference.dtype.kind in "iub") != (candidate.dtype.kind in "iub"):
        return None
    return reference, candidate if reference.dtype.kind in "iub" else candidate.astype(reference.dtype, copy=False)
