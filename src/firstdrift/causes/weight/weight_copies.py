"""Weights that are nearly the reference's, off at random: another state of the same tensor, which no rule made."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...traces import Array
from ..agreement import Floats, distance, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..screening import positions, sampled
from .weight_layouts import is_weight

LEAST = 16  # numbers, below which nothing looks random
COARSEST = 1e-2  # relative: rounding to eight bits and more leaves less than this
ALIKE = 0.9  # cosine of a tensor and an earlier or later state of itself
EVERYWHERE = 0.95  # of the numbers, which differ
CHANCE = 4.0  # standard deviations that a random sum keeps within
LARGEST = 1 << 20  # elements looked at
WINDOW = 16  # neighbours, which coarse integers of one scale would share
DISTINCT = 0.9  # of them that differ from each other, where they are no integers
COMPARED = 32  # other weights that are asked whether they differ too
SAMPLE = 4096


def perturbed_copy(evidence: Evidence) -> Iterator[Finding]:
    """A tensor that is close to the reference's everywhere and equal nowhere, without any pattern."""
    if not is_weight(evidence) or evidence.found.size < LEAST or evidence.found.dtype.kind != "f":
        return
    ours, theirs = _leading(evidence.expected), _leading(evidence.found)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return
    off, error, alike = theirs - ours, distance(ours, theirs), _cosine(ours, theirs)
    differing = float((np.abs(off) > limit(evidence) * np.abs(ours)).mean())
    if error <= COARSEST or alike < ALIKE or differing < EVERYWHERE or _coarse(theirs) or not _random(ours, off):
        return
    sentence = (
        f"the weights are those of the reference but for a random {error:.1e} of them (cosine {alike:.3f}), as if "
        f"trained further, of another checkpoint, or changed since{_others(evidence)}"
    )
    yield Finding("wrong-weight", sentence, parameters={"error": error, "cosine": alike}, general=True)


def _leading(array: Array) -> Floats:
    most = max(1, LARGEST * len(array) // array.size)
    return floats(array[:most])


def _cosine(a: Floats, b: Floats) -> float:
    size = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return float(np.vdot(a, b)) / size if size > 0 else 0.0


def _random(ours: Floats, off: Floats) -> bool:
    """Whether a difference follows neither the weights nor its neighbours along any axis, in size or in direction."""
    outwards = np.sign(off * ours)
    if not _by_chance(ours * off):
        return False
    for axis in range(off.ndim):
        for one in (off, outwards):
            along = np.moveaxis(one, axis, 0)
            if len(along) > 1 and not _by_chance(along[:-1] * along[1:]):
                return False
    return True


def _by_chance(products: Floats) -> bool:
    """Whether products sum to no more than they do with signs drawn at random."""
    return abs(float(products.sum())) <= CHANCE * float(np.linalg.norm(products))


def _coarse(values: Floats) -> bool:
    """Whether neighbours have few different values, as integers of few bits have."""
    count = values.size // WINDOW
    rows = np.sort(values.reshape(-1)[: count * WINDOW].reshape(count, WINDOW), axis=1)
    return float((np.diff(rows, axis=1) != 0).mean()) < DISTINCT


def _others(evidence: Evidence) -> str:
    """Whether other weights differ too, as the end of a sentence."""
    site = evidence.site
    sites = [one for one in evidence.around.sites("weight") if one.step == site.step and one != site]
    differ = []
    for other in sites[:: -(-len(sites) // COMPARED) or 1]:
        a, b = evidence.around.reference(other), evidence.around.candidate(other)
        if a is not None and b is not None and a.shape == b.shape and a.dtype.kind == "f":
            at = positions(a.size, SAMPLE)
            differ.append(distance(sampled(a, at), sampled(b, at)) > max(limit(evidence), COARSEST / 10))
    if not differ:
        return ""
    return "; other weights agree" if not any(differ) else f"; {sum(differ)} of {len(differ)} others differ too"


HYPOTHESES: tuple[Hypothesis, ...] = (perturbed_copy,)
