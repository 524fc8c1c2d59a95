"""Causes that act on some slices of an axis alone, some heads, samples or tokens, where all others are exact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...traces import Array
from ..agreement import Floats, distance, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..position.rope import rotated
from ..wiring import skipped_op

NAMED = 6  # slices listed one by one
FEWEST = 32  # elements of the slices that differ, below which what explains them says little

Numbers = NDArray[np.intp]
WITHIN: tuple[Hypothesis, ...] = (rotated, skipped_op)  # what is true of any part of a tensor and its inputs


def in_some_slices(evidence: Evidence) -> Iterator[Finding]:
    """What explains the slices that differ along an axis, and leaves alone those that do not."""
    shape = evidence.expected.shape
    if evidence.site.phase != "fwd" or len(shape) < 3 or shape != evidence.found.shape or not evidence.inputs:
        return
    with np.errstate(all="ignore"):
        off = np.square(floats(evidence.found) - floats(evidence.expected))
    size = np.square(floats(evidence.expected))
    for axis in range(len(shape) - 1):
        differing = _differing(off, size, limit(evidence), axis)
        if differing is None:
            continue
        part = _taken(evidence, axis, differing)
        for hypothesis in WITHIN:
            for finding in hypothesis(part):
                made = finding.predicted
                if made is not None and distance(made, part.found) <= limit(evidence):
                    yield _spread(evidence, finding, made, axis, differing)


def _differing(off: Floats, size: Floats, within: float, axis: int) -> Numbers | None:
    """The slices along an axis that differ, by the squares of errors and numbers; None where all do or none does."""
    others = tuple(one for one in range(off.ndim) if one != axis)
    errors, sizes = off.sum(axis=others), size.sum(axis=others)
    if not np.isfinite(errors).all():
        return None
    differing = errors > within**2 * sizes
    exact = ~differing & (sizes > 0)  # slices of zeros agree whatever is done to them
    chosen = np.flatnonzero(differing)
    return chosen if len(chosen) * (off.size // len(errors)) >= FEWEST and exact.any() else None


def _taken(evidence: Evidence, axis: int, numbers: Numbers) -> Evidence:
    shape = evidence.expected.shape

    def cut(arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {key: np.take(x, numbers, axis) if x.shape == shape else x for key, x in arrays.items()}

    return replace(
        evidence, expected=np.take(evidence.expected, numbers, axis), found=np.take(evidence.found, numbers, axis),
        inputs=cut(evidence.inputs), candidate_inputs=cut(evidence.candidate_inputs),
    )  # fmt: skip


def _spread(evidence: Evidence, finding: Finding, made: Array, axis: int, numbers: Numbers) -> Finding:
    """A finding about some slices, as one about the whole."""
    predicted = np.array(evidence.expected, copy=True)
    predicted[(slice(None),) * axis + (numbers,)] = made
    count = evidence.expected.shape[axis]
    where = f"at {_words(numbers)} of {count} along axis {axis} alone"
    details = {**finding.parameters, "axis": axis, "slices": numbers[:64].tolist()}
    return Finding(finding.label, f"{where}, {finding.sentence}", predicted, finding.free + 1, details)


def _words(numbers: Numbers) -> str:
    if len(numbers) > 2 and (np.diff(numbers) == 1).all():
        return f"{numbers[0]} to {numbers[-1]}"
    listed = ", ".join(map(str, numbers[:NAMED]))
    return listed if len(numbers) <= NAMED else f"{listed} and {len(numbers) - NAMED} more"


HYPOTHESES: tuple[Hypothesis, ...] = (in_some_slices,)
