"""Clipping that an optimizer does inside its step, seen only in the updates: of each parameter instead of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...sites import Site
from ...traces import Array
from ..agreement import Floats, distance, factor, floats, limit, rounded
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis

MOST_READ = 100_000_000  # elements of updates that are read
BLURRED = 1e-3  # of an update: what storing the weight may cost, for the update to count
ALIKE = 5e-3  # relative: numbers that were read off updates and are the same
FEWEST = 3  # parameters
STORED = 2.0**-24  # relative error of a stored weight


@dataclass(frozen=True, slots=True)
class _Updates:
    """One side's steps: by how much each went against the gradient, and how far."""

    factors: Floats
    norms: Floats


def clipped_apart(evidence: Evidence) -> Iterator[Finding]:
    """Steps along the gradients: one factor for all in the reference, in the candidate one length for the long ones."""
    gradient = evidence.candidate_inputs.get("grad")
    if evidence.site.phase != "weight_after" or gradient is None or not np.any(gradient):
        return
    sides = _sides(evidence)
    if sides is None:
        return
    ours, theirs = sides
    rate = float(theirs.factors.max())
    held = theirs.norms[theirs.factors < rate * (1 - ALIKE)]
    free = theirs.norms[theirs.factors >= rate * (1 - ALIKE)]
    if not _alike(ours.factors) or len(held) < FEWEST - 1 or not _alike(held):
        return
    length, whole = float(np.median(held)), float(np.linalg.norm(ours.norms))
    same = abs(whole / length - 1) <= ALIKE  # all of the reference's steps are together as long as each of these
    if free.max() > length * (1 + ALIKE) or not (same or len(held) >= FEWEST):
        return
    lr, own = evidence.candidate_attrs.get("lr"), float(np.linalg.norm(gradient))
    known = isinstance(lr, (int, float)) and lr >= rate * (1 - ALIKE)
    told, to = {"per": "tensor", "step": length}, ""
    if isinstance(lr, (int, float)) and known:
        rate = float(lr)
        most = rounded(length / lr, ALIKE)
        told, to = told | {"max_norm": most}, f" to {most:.4g}"
    sentence = f"the norm of every gradient is clipped{to} by itself; the reference clips that of all of them together"
    predicted = -floats(gradient) * min(rate, (whole if same else length) / own)
    yield Finding("clip-norm", sentence, predicted, 0 if same else 1, dict(told))


def _sides(evidence: Evidence) -> tuple[_Updates, _Updates] | None:
    """Both sides' steps; None where one is not along its gradient, or the gradients differ."""
    rows: list[tuple[float, float, float, float]] = []
    read = 0
    for site in evidence.around.sites("weight_after"):
        if site.step != evidence.site.step:
            continue
        ours, theirs = (_step(site, look) for look in (evidence.around.reference, evidence.around.candidate))
        if ours is None or theirs is None:
            continue
        read += ours[0].size
        if read > MOST_READ or distance(ours[0], theirs[0]) > max(BLURRED, limit(evidence)):
            return None
        found = [_along(evidence, *one) for one in (ours, theirs)]
        if any(one is None for one in found):
            return None
        rows.append(tuple(value for one in found if one is not None for value in one))  # type: ignore[arg-type]
    if len(rows) < FEWEST:
        return None
    table = np.array(rows).T
    return _Updates(table[0], table[1]), _Updates(table[2], table[3])


def _step(site: Site, look: Callable[[Site], Array | None]) -> tuple[Floats, Floats] | None:
    """The gradient and the step of one parameter, where the step stands out of what storing the weight costs."""
    before, after, gradient = look(site._replace(phase="weight")), look(site), None
    for phase in ("grad_scaled", "grad"):
        gradient = look(site._replace(phase=phase)) if gradient is None else gradient
    if before is None or after is None or gradient is None or not before.shape == after.shape == gradient.shape:
        return None
    step = floats(after) - floats(before)
    if not np.any(gradient) or STORED * np.linalg.norm(floats(before)) > BLURRED * np.linalg.norm(step):
        return None
    return floats(gradient), step


def _along(evidence: Evidence, gradient: Floats, step: Floats) -> tuple[float, float] | None:
    """How far a step goes against the gradient, for one unit of it and in all; None where it does not."""
    times = -factor(gradient, step)
    if not times > 0 or distance(-times * gradient, step) > max(ALIKE, limit(evidence)):
        return None
    return times, float(np.linalg.norm(step))


def _alike(numbers: Floats) -> bool:
    return bool(np.ptp(numbers) <= ALIKE * np.mean(numbers))


HYPOTHESES: tuple[Hypothesis, ...] = (clipped_apart,)
