"""Trying variants of an operation: each on a telling part of the tensor, and what fits there on all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..traces import Array
from .evidence import Evidence
from .hypotheses import DOMINANT, EXACT, LEAST_NOISE, Finding

Floats = NDArray[np.float64]
W = TypeVar("W")

KEPT = 3  # variants that are computed in full
SLIGHT = 0.5  # of a tensor: more than rounding an operand changes
ROUNDED = 1e-6  # the error of a formula where a module insists on float32 inside


@dataclass(frozen=True, slots=True)
class Variant(Generic[W]):
    """One way in which the candidate may compute: `predict` computes it on a part of the tensor, or on all of it."""

    label: str
    sentence: str
    predict: Callable[[W], Array]
    free: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Screen(Generic[W]):
    """A part to try variants on: `seen` is the evidence cut to it; `whole` is None where all of it costs too much."""

    part: W
    seen: Evidence
    whole: W | None


def findings(evidence: Evidence, screen: Screen[W], variants: Iterable[Variant[W]]) -> Iterator[Finding]:
    """What the variants that fit the part predict for the whole; one that changes nothing is no explanation."""
    limit = EXACT * max(evidence.noise, LEAST_NOISE)
    expected, found = (np.asarray(one, np.float64) for one in (screen.seen.expected, screen.seen.found))
    scale = max(_size(expected), _size(found))
    difference = distance(found, expected, scale)
    fitting = []
    for number, variant in enumerate(variants):
        predicted = variant.predict(screen.part)
        error = distance(found, predicted, scale)
        if error > max(2 * limit, 2 * DOMINANT * difference) or not np.isfinite(error):
            continue
        if distance(expected, predicted, scale) > limit:
            fitting.append((error > limit, variant.free, error, number, variant, predicted))
    fitting.sort(key=lambda one: one[:4])
    for coarse, free, error, _, variant, predicted in fitting[:KEPT]:
        if coarse > fitting[0][0]:
            break  # what explains most is not needed where something explains all
        finding = Finding(variant.label, variant.sentence, None, free, variant.parameters)
        if screen.whole is None:
            yield replace(finding, residual=error)
        else:
            yield replace(
                finding, predicted=predicted if screen.part is screen.whole else variant.predict(screen.whole)
            )


def distance(found: Any, predicted: Any, scale: float) -> float:
    """The L2 distance relative to `scale`; infinite where only one side is finite."""
    if found.shape != predicted.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        error = np.asarray(found - predicted, np.float64).ravel()
        square = float(error @ error)
        if not np.isfinite(square):
            alike = np.isfinite(error) | (found == predicted).ravel() | (np.isnan(found) & np.isnan(predicted)).ravel()
            square = float((error[np.isfinite(error)] ** 2).sum()) if alike.all() else np.inf
    return float(np.sqrt(square)) / scale if scale > 0 else float(square > 0)


def _size(array: Floats) -> float:
    flat = array.ravel()
    with np.errstate(all="ignore"):
        square = float(flat @ flat)
    return float(np.sqrt(square)) if np.isfinite(square) else float(np.linalg.norm(flat[np.isfinite(flat)]))


def reproduces(predicted: Any, expected: Any, noise: float) -> bool:
    """Whether a formula computes what the reference computed, up to noise."""
    return misfit(predicted, expected) <= max(EXACT * noise, ROUNDED)


def misfit(predicted: Any, expected: Any) -> float:
    """The relative L2 distance of a formula from the reference's tensor."""
    if predicted.shape != expected.shape:
        return float("inf")
    finite = np.isfinite(expected)
    with np.errstate(all="ignore"):
        scale = float(np.linalg.norm(expected[finite]))
        error = float(np.linalg.norm((predicted - expected)[finite]))
    return error / scale if scale > 0 and np.isfinite(error) else float("inf")


def telling(expected: Any, found: Any, count: int) -> NDArray[np.intp]:
    """Which rows of two matrices to look at: half of them those that differ most, the others spread evenly."""
    rows = len(expected)
    if rows <= count:
        return np.arange(rows)
    with np.errstate(all="ignore"):
        difference = np.nan_to_num(((found - expected) ** 2).sum(1), nan=np.inf)
    most = np.argpartition(difference, rows - count // 2)[rows - count // 2 :]
    spread = np.linspace(0, rows - 1, count - count // 2).astype(np.intp)
    return np.unique(np.concatenate([most, spread]))


def slight(evidence: Evidence) -> bool:
    """Whether most of the tensor is in place, as it is where only something was rounded."""
    return misfit(np.asarray(evidence.found, np.float64), np.asarray(evidence.expected, np.float64)) < SLIGHT


def floats(evidence: Evidence) -> bool:
    """Whether both tensors hold real numbers, and some."""
    return all(one.size > 0 and one.dtype == np.float64 for one in (evidence.expected, evidence.found))


def forward(evidence: Evidence) -> bool:
    """Whether this is a value of the forward pass."""
    return evidence.site.phase == "fwd" and floats(evidence)


def parameter(evidence: Evidence, *names: str) -> Floats | None:
    """The module's parameter of one of these names."""
    for name in names:
        if name in evidence.parameters:
            return np.asarray(evidence.parameters[name], np.float64)
    return None
