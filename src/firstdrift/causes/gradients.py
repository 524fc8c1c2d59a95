"""What many gradients have in common: all are scaled, none arrives, those of the step before were kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..sites import Site
from .agreement import agree, distance, factor, floats, limit, rounded, snapped
from .evidence import Evidence
from .hypotheses import Finding, Hypothesis

CANCELLED = 1e-3  # of the largest: gradients below that may be the rounding errors of a sum that is zero
PHASES = ("agrad", "grad", "grad_scaled")
MOST_COMPARED = 24  # tensors that are asked whether all gradients have one factor
PARALLEL = 1e-2  # of a gradient: what a factor may leave of it to be its factor


def nothing_flows(evidence: Evidence) -> Iterator[Finding]:
    """A gradient that is zero where the reference's is not."""
    if evidence.site.phase in PHASES and not np.any(evidence.found) and np.any(evidence.expected):
        sentence = "no gradient arrives here: it is zero, as after detach() or a frozen parameter"
        yield Finding("gradient-missing", sentence, np.zeros_like(floats(evidence.expected)))


def one_factor(evidence: Evidence) -> Iterator[Finding]:
    """One factor of all gradients, or of all that come of this one."""
    if evidence.site.phase not in PHASES or evidence.found.size < 2:
        return
    times = factor(evidence.expected, evidence.found)
    if not np.isfinite(times) or times <= 0 or abs(times - 1) <= limit(evidence):
        return
    predicted = floats(evidence.expected) * times
    if not agree(evidence, predicted, evidence.found):
        return
    value = rounded(times, limit(evidence))
    if _everywhere(evidence, times):
        sentence = f"all gradients are {value:.6g} times what they should be{_reason(evidence, times)}"
        yield Finding("gradient-scale", sentence, predicted, 1, {"factor": value})
    elif _from_here(evidence, times):
        sentence = f"this gradient and all that come of it are {value:.6g} times what they should be"
        sentence += _reason(evidence, times)
        yield Finding("gradient-scale", sentence, predicted, 1, {"factor": value})


def not_zeroed(evidence: Evidence) -> Iterator[Finding]:
    """A gradient to which that of the step before was added."""
    site = evidence.site
    if site.phase not in ("grad", "grad_scaled") or site.step == 0:
        return
    sentence = "the gradient of the step before was added: gradients are not set to zero"
    for phase in dict.fromkeys((site.phase, "grad_scaled")):  # what is left there may have been scaled since
        left = evidence.around.candidate(site._replace(step=site.step - 1, phase=phase))
        if left is not None and left.shape == evidence.found.shape:
            predicted = floats(evidence.expected) + floats(left)
            yield Finding("gradient-formula", sentence, predicted, 0, {"step": site.step - 1})


def _everywhere(evidence: Evidence, times: float) -> bool:
    """Whether every gradient recorded has this factor: those of activations count where this is one."""
    phases = ("agrad", "grad") if evidence.site.phase == "agrad" else (evidence.site.phase,)
    return _shared(evidence, [site for phase in phases for site in _now(evidence, phase)], times)


def _from_here(evidence: Evidence, times: float) -> bool:
    """Whether everything that the backward pass computes from a gradient has its factor: whatever it was scaled by,
    nothing else adds to the gradients behind it."""
    if evidence.site.phase != "agrad":
        return False
    behind = dict.fromkeys([evidence.site])  # in order
    for site in (*_now(evidence, "agrad"), *_now(evidence, "grad")):
        if not behind.keys().isdisjoint(evidence.around.producers(site)):
            behind[site] = None
    return _shared(evidence, list(behind), times)


def _now(evidence: Evidence, phase: str) -> list[Site]:
    return [site for site in evidence.around.sites(phase) if site.step == evidence.site.step]


def _shared(evidence: Evidence, sites: list[Site], times: float) -> bool:
    """Whether some gradients, more than one, have this factor; those that cancel to next to nothing do not tell."""
    compared = [one for site in _spread(sites) if (one := _compared(evidence, site)) is not None]
    largest = max((one.size for one in compared), default=0.0)
    telling = [one.times for one in compared if one.parallel or one.size > CANCELLED * largest]
    tolerance = max(8 * limit(evidence), 1e-3 * abs(times - 1))
    return len(telling) > 1 and all(abs(one - times) <= tolerance * times for one in telling)


def _spread(sites: list[Site]) -> list[Site]:
    """Some sites, from the first to the last."""
    stride = -(-len(sites) // MOST_COMPARED) or 1
    return list(dict.fromkeys([*sites[::stride], *sites[-1:]]))


@dataclass(frozen=True, slots=True)
class _Compared:
    """A gradient of both sides: the factor between them, whether that is all there is, and the size of an element."""

    times: float
    parallel: bool
    size: float


def _compared(evidence: Evidence, site: Site) -> _Compared | None:
    a, b = evidence.around.reference(site), evidence.around.candidate(site)
    if a is None or b is None or a.shape != b.shape or not np.any(a):
        return None
    times = factor(a, b)
    size = float(np.linalg.norm(floats(a))) / float(np.sqrt(a.size))
    return _Compared(times, distance(times * floats(a), b) <= PARALLEL, size)


def _reason(evidence: Evidence, times: float) -> str:
    batch = evidence.around.facts.get("batch")
    size = batch.get("size") if isinstance(batch, dict) else batch
    if isinstance(size, int) and size > 1 and snapped(times, (float(size), 1 / size), limit(evidence)) is not None:
        return f", the batch being of {size}"
    return ""


HYPOTHESES: tuple[Hypothesis, ...] = (nothing_flows, one_factor, not_zeroed)
