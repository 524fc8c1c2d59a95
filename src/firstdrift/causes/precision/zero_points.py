"""Zero points of single groups, read off the output of a layer that holds its weights as integers.

A group of weights whose zero point is off by some steps is off by so many scales, all alike: the output changes by the
sum of the group's inputs times that. Neither the integers nor the zero points need to be known, which may be packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..agreement import Floats, floats, limit
from ..evidence import Evidence
from ..hypotheses import DOMINANT, Finding, Hypothesis
from .dequantised import per_group

MORE = 4  # rows more than groups
MOST_ROWS = 4096  # from which steps are read off
MOST_STEPS = 255  # of eight bits
STRAIGHT = 0.1  # of a step: how far from whole numbers steps may be read off
SPREAD = 1e-5  # of the largest: what the least of the directions in which inputs vary must be

Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Moved:
    """By how many steps each group of each row (out, groups) is off, in units of the scales."""

    steps: Whole
    scale: Floats

    def __call__(self, x: Floats) -> Floats:
        """What that adds to the output."""
        return -_sums(x, self.steps.shape[1]) @ (self.steps * self.scale).T


def moved_zero_points(evidence: Evidence) -> Iterator[Finding]:
    """The output differs by sums of groups of the input, times whole numbers of the groups' scales."""
    x, shape = evidence.candidate_inputs.get("in.0"), evidence.expected.shape
    if (
        x is None or evidence.site.phase != "fwd" or len(shape) < 2 or x.dtype.kind != "f" or x.shape[:-1] != shape[:-1]
        or not any(one.dtype.kind in "iu" and one.ndim > 1 for one in evidence.parameters.values())
    ):  # fmt: skip
        return
    expected, found = (floats(one).reshape(-1, shape[-1])[:MOST_ROWS] for one in (evidence.expected, evidence.found))
    some = floats(x).reshape(-1, x.shape[-1])[:MOST_ROWS]
    for name, value in evidence.parameters.items():
        for scale in per_group(value, shape[-1], x.shape[-1]) if value.dtype.kind == "f" else ():
            moved = _read(some, expected, found, scale, limit(evidence)) if np.all(scale > 0) else None
            if moved is not None:
                count, said = _told(moved, evidence, x.shape[-1])
                predicted = floats(evidence.expected) + moved(floats(x))
                steps = [int(one) for one in np.unique(moved.steps)[:16]]
                yield Finding("zero-point", said, predicted, count, {"steps": steps, "scale": name})
                return


def _sums(x: Floats, groups: int) -> Floats:
    return np.asarray(x.reshape(*x.shape[:-1], groups, -1).sum(-1))


def _read(x: Floats, expected: Floats, found: Floats, scale: Floats, enough: float) -> Moved | None:
    """The steps that make the difference, where they are whole and the inputs tell them."""
    sums, wanted = _sums(x, scale.shape[1]), found - expected
    if len(sums) < scale.shape[1] + MORE or not (np.isfinite(sums).all() and np.isfinite(wanted).all()):
        return None
    spread = np.linalg.svd(sums, compute_uv=False)
    if spread[-1] <= SPREAD * spread[0]:
        return None
    made = np.linalg.lstsq(sums, wanted, rcond=None)[0]
    size = max(float(np.linalg.norm(expected)), float(np.linalg.norm(found)))
    if float(np.linalg.norm(wanted - sums @ made)) > min(enough * size, DOMINANT * float(np.linalg.norm(wanted))):
        return None
    steps = -made.T / scale
    whole = np.round(steps)
    if np.abs(steps - whole).max() > STRAIGHT or not 0 < np.abs(whole).max() <= MOST_STEPS:
        return None
    return Moved(whole.astype(np.int64), scale)


def _told(moved: Moved, evidence: Evidence, width: int) -> tuple[int, str]:
    """How many numbers describe the steps, and in which words."""
    steps = moved.steps
    off = int(np.count_nonzero(steps))
    some = f"the zero points of {off} of {steps.size} groups are off, by {steps[steps != 0].min():+d}"
    said = some + (f" to {steps.max():+d}" if np.ptp(steps[steps != 0]) else "")
    if np.ptp(steps) == 0:
        return 1, said
    for value in evidence.parameters.values():
        for zeros in per_group(value, len(steps), width) if value.dtype.kind in "iu" else ():
            read = _reading(zeros, steps) if zeros.shape == steps.shape else None
            if read:
                words = ", ".join(f"{ours} is read as {theirs}" for ours, theirs in list(read.items())[:4])
                return min(len(read), off), f"{said}: {words}" + ("" if len(read) <= 4 else " and so on")
    return off, said


def _reading(zeros: Floats, steps: Whole) -> dict[int, int] | None:
    """What each zero point is read as, if the same wherever it stands; only those that are read otherwise."""
    read: dict[int, int] = {}
    for zero in np.unique(zeros):
        by = np.unique(steps[zeros == zero])
        if len(by) > 1:
            return None
        if by[0]:
            read[int(zero)] = int(zero + by[0])
    return read


HYPOTHESES: tuple[Hypothesis, ...] = (moved_zero_points,)
