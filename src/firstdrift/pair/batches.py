"""What the two sides recorded in other portions, brought together: gradients of a mean against gradients of a sum,
batches against single samples, several calls against one.

`gradient_of` in a trace's header says what its loss gradients, activation gradients and raw parameter gradients
are gradients of. A C harness runs samples one by one and sums; PyTorch runs a batch and takes the mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..core.records import Record
from ..core.sites import Site, in_words
from ..core.traces import Trace
from ..errors import SelectionError
from .arrangements import agrees
from .pairs import Transform

SCALED_PHASES = frozenset({"lossgrad", "agrad", "grad"})  # `grad_scaled` is what the optimizer sees on either side


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a side's gradients are gradients of."""

    kind: str  # mean or sum
    batch: int

    @property
    def to_sum(self) -> float:
        """The factor that turns these gradients into gradients of a sum over samples."""
        return float(self.batch) if self.kind == "mean" else 1.0


def stated_reduction(trace: Trace, declared: str | None, batch: int | None) -> Reduction | None:
    """The reduction of one side: declared on the command line, else from its header, else unknown."""
    said = trace.header.get("gradient_of")
    if declared is None and said is None:
        return None
    if not (said is None or isinstance(said, dict)):
        raise SelectionError(f"{trace.path}: 'gradient_of' is {said!r}, not an object; correct trace.json")
    kind = declared or (said or {}).get("reduction")
    size = batch or (said or {}).get("batch") or trace.header.get("batch") or (1 if kind == "sum" else None)
    if kind not in ("mean", "sum") or type(size) is not int or size < 1:
        raise SelectionError(
            f"{trace.path}: gradients of a {kind!r} over {size!r} samples cannot be reconciled; "
            "say mean or sum with --reference-reduction or --candidate-reduction, and --batch"
        )
    return Reduction(kind, size)


@dataclass(frozen=True, slots=True)
class Units:
    """How the gradients of the two sides relate."""

    reference: Reduction | None
    candidate: Reduction | None

    @classmethod
    def of(
        cls, reference: Trace, candidate: Trace, declared: tuple[str | None, str | None] = (None, None),
        batch: int | None = None,
    ) -> Units:  # fmt: skip
        """Find both sides' reductions. Declaring one side alone says that the other one is an unscaled sum."""
        of_reference = stated_reduction(reference, declared[0], batch if declared[0] else None)
        of_candidate = stated_reduction(candidate, declared[1], batch if declared[1] else None)
        if of_reference is None and declared[1]:
            of_reference = Reduction("sum", 1)
        if of_candidate is None and declared[0]:
            of_candidate = Reduction("sum", 1)
        return cls(of_reference, of_candidate)

    def steps(self, site: Site) -> tuple[tuple[Transform, ...], tuple[Transform, ...]]:
        """Transforms of the reference and of the candidate; it is multiplied, never divided, to round least."""
        if site.phase not in SCALED_PHASES or self.reference is None or self.candidate is None:
            return (), ()
        ratio = self.reference.to_sum / self.candidate.to_sum
        if ratio > 1:
            return (Transform("scale", factor=ratio),), ()
        return ((), (Transform("scale", factor=1 / ratio),)) if ratio < 1 else ((), ())

    @property
    def note(self) -> str | None:
        """What was reconciled, in words; or that one side does not say what it is."""
        if self.reference is None and self.candidate is None:
            return None
        if self.reference is None or self.candidate is None:
            silent = "candidate" if self.candidate is None else "reference"
            return f"the {silent} does not say what its gradients are of; give --{silent}-reduction if they differ"
        if self.reference.to_sum == self.candidate.to_sum:
            return None
        words = [f"{r.kind} over {r.batch}" if r.kind == "mean" else "sum" for r in (self.reference, self.candidate)]
        return f"gradients of a {words[0]} (reference) and of a {words[1]} (candidate) were reconciled"


def sample_steps(sample: int) -> tuple[Transform, ...]:
    """One sample of a batched tensor."""
    return (Transform("slice", axes=(0,), start=sample, stop=sample + 1),)


def recorded_calls(
    of_reference: Mapping[Site, Record], of_candidate: Mapping[Site, Record], reference: Trace, candidate: Trace
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
            same = [site for site, own in made.items() if own.shape == array.shape and agrees(own, array, ())]
            if len(same) == 1 and same[0] != other:
                yield same[0], other


def said_call(site: Site) -> str:
    """A call for people, its number always said."""
    return f"call {site.call} of {in_words(site._replace(call=0))}"


def is_unscaled(trace: Trace, seen: Record, raw: Record) -> bool:
    """Whether the optimizer saw the very gradient."""
    if seen.at is None or raw.at is None or (seen.dtype, seen.shape) != (raw.dtype, raw.shape):
        return False
    return seen.at == raw.at or bool(np.array_equal(trace.array(seen), trace.array(raw)))
