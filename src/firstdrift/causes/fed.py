"""Different inputs: the two sides were not fed the same data, and how the data differ where that can be told."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .agreement import floats, limit
from .elementwise import offset, scale
from .evidence import Evidence
from .hypotheses import Finding, Hypothesis, residual
from .layout.layouts import axis_order
from .layout.permutations import index_shift, patterned, permuted
from .precision.rounding import stored_coarser

MOST_CHANNELS = 16
ROWS = 8  # per fitted number


def different_input(evidence: Evidence) -> Iterator[Finding]:
    """Whatever differs at an input: the sides were fed different data."""
    if evidence.site.phase != "input":
        return
    for hypothesis in (patterned, axis_order, index_shift, scale, offset, _normalised, permuted, stored_coarser):
        for one in hypothesis(evidence):
            if residual(evidence, one) <= limit(evidence):
                said = f"the two sides were fed different data: {one.sentence}"
                yield Finding("different-input", said, None, 0, {"how": one.label, **one.parameters}, 0.0)
                return
    a, b = evidence.expected, evidence.found
    share = float((a != b).mean()) if a.size else 1.0
    said = f"the two sides were fed different data: {share:.1%} of the elements differ"
    yield Finding("different-input", said, None, 0, {"how": "unknown", "share": share}, 0.0)


def _normalised(evidence: Evidence) -> Iterator[Finding]:
    """Every channel has a factor and an offset of its own, as means and deviations give."""
    shape = evidence.expected.shape
    for axis in {1, len(shape) - 1} if len(shape) > 2 else ():
        channels = shape[axis]
        if not 1 < channels <= MOST_CHANNELS or evidence.expected.size // channels < 2 * ROWS:
            continue
        a, b = (np.moveaxis(floats(one), axis, 0).reshape(channels, -1) for one in (evidence.expected, evidence.found))
        x, y = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
        square = (x * x).sum(axis=1)
        if not (square > 0).all():
            continue
        factors = (x * y).sum(axis=1) / square
        offsets = b.mean(axis=1) - factors * a.mean(axis=1)
        rest = tuple(size for one, size in enumerate(shape) if one != axis)
        predicted = np.moveaxis((a * factors[:, None] + offsets[:, None]).reshape(channels, *rest), 0, axis)
        said = f"every channel of axis {axis} is normalised otherwise"
        details = {"axis": axis, "factors": factors.tolist(), "offsets": offsets.tolist()}
        yield Finding("channel-scale", said, predicted, 2 * channels, details)


HYPOTHESES: tuple[Hypothesis, ...] = (different_input,)
