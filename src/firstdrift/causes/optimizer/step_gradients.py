"""Causes inside an optimizer's step, before its own formula: gradients that are scaled, or clipped otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..agreement import Floats, floats, limit, rounded, telling
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from .applied_gradients import Applied, applied, judged, with_factors
from .gradient_clipping import power_of_two

ALIKE = 3e-3  # relative: factors that are the same
ROUND = 90  # numbers of two digits in a decade, of which a limit is one
CLIPPED_BY = 2e-5  # relative: what remains of a norm is that much less than it was clipped to, or more
FEWEST = 2  # gradients of one norm that were clipped one by one


@dataclass(frozen=True, slots=True)
class _Step:
    """All parameters that tell: norms of their gradients, their factors, and the norm of all gradients together."""

    norms: Floats
    ours: Floats
    theirs: Floats
    whole: float


def other_factor(evidence: Evidence) -> Iterator[Finding]:
    """Gradients multiplied by one number that all states agree about; that of clipping where a norm is round."""
    known = applied(evidence) if evidence.site.phase in ("optim", "weight_after") else None
    key = judged(evidence.site)
    found = [one for one in known or () if key in one.ours and one.ours.keys() == one.theirs.keys()]
    if known is None or not found or not all(_agreeing(one, key) for one in found):
        return
    norms = np.array([one.norm for one in found])
    factors = np.array([[one.ours[key], one.theirs[key]] for one in found]).T
    step = _Step(norms, factors[0], factors[1], float(np.linalg.norm([one.norm for one in known])))
    if not _alike(step.ours):
        return
    ours = _mean(step.ours, step.norms)
    if _alike(step.theirs):
        yield from _together(evidence, step, ours, _mean(step.theirs, step.norms))
    else:
        yield from _one_by_one(evidence, found, step, ours)


def _together(evidence: Evidence, step: _Step, ours: float, theirs: float) -> Iterator[Finding]:
    """One factor for all on either side."""
    times = theirs / ours
    predicted = with_factors(evidence, ours, theirs)
    if predicted is None or abs(times - 1) <= 2 * limit(evidence):
        return
    left, kept = theirs * step.whole, ours * step.whole
    clips = [side < 1 - ALIKE and _written(evidence, side * step.whole) for side in (ours, theirs)]
    if clips[0] and theirs <= 1 + ALIKE and (clips[1] or _is_clipping(evidence, times, theirs)):
        limited = rounded(kept, 1e-3)
        said = f"the reference clips the norm of all gradients to {limited:.6g}"
        instead = f"the candidate's is {rounded(left, 1e-3):.6g}, {rounded(times, 1e-3):.6g} times that"
        if abs(theirs - 1) <= ALIKE:
            instead = "the candidate does not clip them"
        elif clips[1]:
            instead = f"the candidate to {rounded(left, 1e-3):.6g}"
        elif (scale := power_of_two(1 / times, ALIKE)) is not None:
            instead += f": as when gradients are clipped while they still are multiplied by {scale:g}"
        parameters = {"reference_max_norm": limited, "norm": left}
        yield Finding("clip-norm", f"{said}; {instead}", predicted, 0, parameters)
    elif clips[1] and abs(ours - 1) <= ALIKE:
        limited = rounded(left, 1e-3)
        sentence = f"the candidate clips the norm of all gradients to {limited:.6g}; the reference does not clip them"
        yield Finding("clip-norm", sentence, predicted, 0, {"max_norm": limited})
    elif judged(evidence.site) != "update":  # which a learning rate may have scaled
        value = rounded(times, max(limit(evidence), 1e-6))
        sentence = f"the optimizer's step takes gradients that are {value:.6g} times the reference's"
        yield Finding("gradient-scale", sentence, predicted, 1, {"factor": value})


def _is_clipping(evidence: Evidence, times: float, theirs: float) -> bool:
    """Whether a factor beside clipping comes of it. That of an update may be a rate's, as half or a tenth."""
    if judged(evidence.site) != "update" or abs(theirs - 1) <= ALIKE or (power_of_two(1 / times, ALIKE) or 0) > FEWEST:
        return True
    return abs(float(f"{times:.2g}") / times - 1) > ALIKE


def _one_by_one(evidence: Evidence, found: list[Applied], step: _Step, ours: float) -> Iterator[Finding]:
    """One norm for each gradient that is longer than it."""
    lengths = step.theirs * step.norms
    held = lengths[step.theirs < 1 - ALIKE]
    free = step.theirs[step.theirs >= 1 - ALIKE]
    if (
        len(held) < FEWEST
        or not _alike(held)
        or (len(free) and (free.max() > 1 + ALIKE or lengths.max() > 1.01 * held[0]))
    ):
        return
    most = float(np.median(held))
    kept = ours * step.whole
    same = abs(kept / most - 1) <= ALIKE
    if not (same or _written(evidence, most) or len(held) > FEWEST):
        return
    port = evidence.site.port.partition(".")[0]
    own = next((one for one in found if (one.site.name, one.site.port) == (evidence.site.name, port)), None)
    predicted = None if own is None else with_factors(evidence, ours, min(1.0, most / own.norm))
    if predicted is None:
        return
    clipped = "does not clip" if abs(ours - 1) <= ALIKE else "clips all of them together"
    shown = rounded(most, 1e-3)
    sentence = f"the norm of every gradient is clipped to {shown:.6g} by itself; the reference {clipped}"
    yield Finding("clip-norm", sentence, predicted, 0, {"max_norm": shown, "per": "tensor"})


def _agreeing(one: Applied, key: str) -> bool:
    """Whether all states tell the same of what changed between the sides: settings may be unknown, ratios are not."""
    times = one.theirs[key] / one.ours[key]
    return all(abs(one.theirs[other] / one.ours[other] / times - 1) <= ALIKE for other in one.ours)


def _written(evidence: Evidence, norm: float) -> bool:
    """Whether a norm is a number of two digits, as somebody would write it, and not by chance."""
    tolerance = max(limit(evidence), CLIPPED_BY)
    return abs(float(f"{norm:.2g}") / norm - 1) <= tolerance and telling(evidence, ROUND)


def _alike(numbers: Floats) -> bool:
    return bool(np.ptp(numbers) <= ALIKE * abs(float(np.mean(numbers))))


def _mean(factors: Floats, norms: Floats) -> float:
    """The factor of all gradients, long ones telling it best."""
    return float(np.average(floats(factors), weights=norms**2))


HYPOTHESES: tuple[Hypothesis, ...] = (other_factor,)
