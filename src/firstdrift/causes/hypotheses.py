"""What a hypothesis is, and how one is chosen among those that explain a drift."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..compare.result import Cause
from ..traces import Array
from .evidence import Evidence
from .labels import LABELS

EXACT = 4.0  # times the noise: a hypothesis that leaves no more than this explains everything
DOMINANT = 0.1  # of the difference: a hypothesis that leaves no more than this explains most of it
LEAST_NOISE = 1e-12  # even float64 leaves this much

Hypothesis = Callable[[Evidence], "Iterable[Finding]"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause with its parameters fitted, and what it predicts.

    `predicted` is the candidate's tensor if this were the cause. `free` counts the numbers that were fitted to the
    candidate (0 for a missing bias, 1 for a factor, one per channel, one per element moved): fewer is better. A
    finding about more than one tensor gives its own relative `residual` instead of a prediction.
    """

    label: str
    sentence: str
    predicted: Array | None = None
    free: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    residual: float | None = None


@dataclass(frozen=True, slots=True)
class Tested:
    """A finding and the relative error that it leaves unexplained."""

    finding: Finding
    residual: float


def explain(evidence: Evidence, table: Sequence[Hypothesis]) -> Cause:
    """The cause with the fewest fitted numbers that explains a drift up to noise; else the one that explains most."""
    tested = [Tested(one, residual(evidence, one)) for hypothesis in table for one in hypothesis(evidence)]
    limit = EXACT * max(evidence.noise, LEAST_NOISE)
    exact = sorted((one for one in tested if one.residual <= limit), key=_preference)
    if exact:
        return _cause(exact, 0.95 if exact[0].finding.free <= FEW else 0.8)
    whole = relative(evidence.found, evidence.expected, evidence)
    dominant = sorted((one for one in tested if one.residual <= DOMINANT * whole), key=lambda one: one.residual)
    if dominant:
        return _cause(dominant, 0.5)
    return Cause("unknown", "no known cause explains the difference", 0.0, "compare the two implementations there")


FEW = 4  # fitted numbers, above which a fit says less


def relative(found: Array, predicted: Array, evidence: Evidence) -> float:
    """The L2 distance of two tensors, relative to the larger of what was expected and found.

    Where both are not finite and alike they agree; where only one is, nothing is explained.
    """
    if found.shape != predicted.shape:
        return float("inf")
    a, b = np.asarray(found, np.float64), np.asarray(predicted, np.float64)
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        alike = finite | (a == b) | (np.isnan(a) & np.isnan(b))
        if not alike.all():
            return float("inf")
        scale = max(_norm(evidence.expected), _norm(evidence.found))
        error = _norm(np.where(finite, a - b, 0.0))
    return error / scale if scale > 0 else float(error > 0)


def residual(evidence: Evidence, finding: Finding) -> float:
    """The relative error that a finding leaves."""
    if finding.predicted is None:
        return float("inf") if finding.residual is None else finding.residual
    return relative(evidence.found, finding.predicted, evidence)


def _norm(array: Array) -> float:
    a = np.asarray(array, np.float64)
    return float(np.linalg.norm(a[np.isfinite(a)]))


def _preference(one: Tested) -> tuple[int, int, float]:
    return one.finding.free, -LABELS[one.finding.label].specificity, one.residual


def _cause(ranked: Sequence[Tested], confidence: float) -> Cause:
    best = ranked[0]
    rival = next((one for one in ranked[1:] if one.finding.label != best.finding.label), None)
    return Cause(
        best.finding.label, best.finding.sentence, confidence, LABELS[best.finding.label].confirm,
        best.finding.parameters, None if rival is None else rival.finding.label,
    )  # fmt: skip
