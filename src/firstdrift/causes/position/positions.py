"""Causes in the numbers of positions, and in the embeddings that are looked up by them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from .rope_changes import SHIFTS

Integers = NDArray[np.int64]


def numbers(evidence: Evidence) -> Iterator[Finding]:
    """Numbers of positions, and rows that an embedding of positions gives for them, off by a constant."""
    expected = evidence.expected
    if expected.shape != evidence.found.shape or not expected.size or not expected.ndim:
        return
    if np.issubdtype(expected.dtype, np.integer):
        yield from _counted(np.asarray(expected, np.int64), np.asarray(evidence.found, np.int64))
    elif evidence.site.phase == "fwd":
        yield from _looked_up(evidence)


def _counted(expected: Integers, found: Integers) -> Iterator[Finding]:
    steps = np.diff(expected, axis=-1)
    if expected.shape[-1] < 3 or not np.isin(steps, (0, 1)).all() or not (steps == 1).any():
        return
    off = found - expected
    shift = int(off.flat[0])
    if (off == shift).all():
        yield Finding("position-shift", f"positions are off by {shift:+d}", expected + shift, 0, {"shift": shift})
    elif (np.diff(found, axis=-1) == 1).all() and (found[..., 0] == found.flat[0]).all():
        counted = np.broadcast_to(np.arange(found.shape[-1]) + found.flat[0], found.shape)
        yield Finding("position-shift", "positions are counted without regard to padding", counted)


def _looked_up(evidence: Evidence) -> Iterator[Finding]:
    weight, places = evidence.parameters.get("weight"), evidence.candidate_inputs.get("in.0")
    if weight is None or places is None or weight.ndim != 2 or not np.issubdtype(places.dtype, np.integer):
        return
    rows = np.asarray(places, np.int64)
    if rows.ndim == 0 or rows.shape[-1] < 3 or not (np.diff(rows, axis=-1) == 1).all():
        return  # these are no positions
    if (*rows.shape, weight.shape[1]) != evidence.expected.shape:
        return
    for shift in SHIFTS:
        if rows.min() + shift >= 0 and rows.max() + shift < len(weight):
            said = f"positions are off by {shift:+d}"
            yield Finding("position-shift", said, weight[rows + shift], 0, {"shift": shift})


HYPOTHESES: tuple[Hypothesis, ...] = (numbers,)
