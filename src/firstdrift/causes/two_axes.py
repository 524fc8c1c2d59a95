"""Factors that belong to two axes together, such as a gain for every channel of every head."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from .agreement import Floats, floats, limit
from .elementwise import FACTORS_NAMED_ELSEWHERE, promising
from .evidence import Evidence
from .hypotheses import Finding, Hypothesis

ROWS = 8  # per fitted number
PART = 1 << 16  # elements by which factors are tried
FACTORS = 1 << 16  # numbers that may be fitted
NONE = 1e-3  # of the usual gain: one that is less has no factor to speak of
OFFSETS = (0.0, 1.0)  # what is added to a gain before it is applied

Axes = tuple[int, ...]


def pair_scale(evidence: Evidence) -> Iterator[Finding]:
    """Found is expected times a factor for every pair of places on two axes, whatever the others are; or for every
    place of an axis that is not known to hold channels."""
    shape, phase = evidence.expected.shape, evidence.site.phase
    if phase in FACTORS_NAMED_ELSEWHERE or phase == "weight" or not 3 <= len(shape) <= 5:
        return
    for axes in _some_axes(shape):
        count = int(np.prod([shape[axis] for axis in axes]))
        if any(shape[axis] < 2 for axis in axes) or count > FACTORS or evidence.expected.size < ROWS * count:
            continue
        part = _thinned(shape, axes)
        e, f = floats(evidence.expected[part]), floats(evidence.found[part])
        factors = _factors(e, f, axes)
        if not promising(evidence, e, f, factors * e):
            continue
        needed = tuple(axis for axis in axes if not _near(evidence, _alike(factors, axis) * e, factors * e))
        if needed and _may_be_channels(evidence, needed):
            yield from _told(evidence, needed)
            yield from _of_one(evidence, needed)
        return


def _some_axes(shape: tuple[int, ...]) -> Iterator[Axes]:
    """Two axes, one of them the last where that may be, then single ones; never that of samples."""
    inner = range(1, len(shape))
    yield from sorted(combinations(inner, 2), key=lambda pair: pair[1] != len(shape) - 1)
    yield from ((axis,) for axis in inner)


def _may_be_channels(evidence: Evidence, axes: Axes) -> bool:
    """Whether factors of these axes are those of channels: of few axes, one may be that of time, unless a parameter
    has a number for each. Those of a single axis that usually holds channels are told elsewhere."""
    shape = evidence.expected.shape
    if axes in ((1,), (len(shape) - 1,)) and (len(shape) > 3 or axes == (2,)):
        return False
    sizes = tuple(shape[axis] for axis in axes)
    held = any(_wide(one.shape) == sizes for one in evidence.parameters.values())
    return held or (len(shape) > 3 and (len(axes) == 1 or axes[1] == len(shape) - 1))


def _wide(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size > 1)


def _told(evidence: Evidence, axes: Axes) -> Iterator[Finding]:
    expected = floats(evidence.expected)
    factors = _factors(expected, floats(evidence.found), axes)
    scaled = np.abs(factors - 1) > 2 * limit(evidence)
    if not np.isfinite(factors).all() or not scaled.any():
        return
    count = int(scaled.sum())
    low, high = factors[scaled].min(), factors[scaled].max()
    of = " x ".join(str(evidence.expected.shape[axis]) for axis in axes)
    where = f"axis {axes[0]}" if len(axes) == 1 else f"axes {axes[0]} and {axes[1]}"
    said = f"{count} of {of} channels ({where}) are multiplied by {low:.6g} to {high:.6g}"
    predicted = expected * np.where(scaled, factors, 1.0)
    yield Finding("channel-scale", said, predicted, count, {"axes": list(axes), "count": count})


def _of_one(evidence: Evidence, axes: Axes) -> Iterator[Finding]:
    """One row of a gain is used in place of all its rows."""
    shape = tuple(evidence.expected.shape[axis] for axis in axes)
    met = [size if axis in axes else 1 for axis, size in enumerate(evidence.expected.shape)]
    for name, value in evidence.candidate_parameters.items():
        if value.dtype.kind != "f" or _wide(value.shape) != shape:
            continue
        for offset in OFFSETS:
            gain = floats(value).reshape(shape) + offset
            if (np.abs(gain) < NONE * np.abs(gain).mean()).any():
                continue
            for place in dict.fromkeys((0, shape[0] - 1)):
                predicted = floats(evidence.expected) * (gain[place] / gain).reshape(met)
                said = f"{name}[{place}] is applied all along axis {axes[0]}, instead of one for each of {shape[0]}"
                facts = {"axes": list(axes), "parameter": name, "place": place}
                yield Finding("channel-scale", said, predicted, 0, facts)


def _thinned(shape: tuple[int, ...], axes: Axes) -> tuple[slice, ...]:
    """A part of a tensor that has all of some axes, and as little of the others as is enough."""
    size, steps = int(np.prod(shape)), [1] * len(shape)
    for axis in (one for one in range(len(shape)) if one not in axes):
        step = max(min(size // PART, shape[axis] // ROWS), 1)
        steps[axis], size = step, size // step
    return tuple(slice(None, None, step) for step in steps)


def _factors(expected: Floats, found: Floats, axes: Axes) -> Floats:
    """The factors by least squares, one where nothing was expected, shaped to meet the tensor."""
    others = tuple(axis for axis in range(expected.ndim) if axis not in axes)
    square = (expected * expected).sum(axis=others, keepdims=True)
    both = (expected * found).sum(axis=others, keepdims=True)
    return np.asarray(np.divide(both, square, np.ones_like(square), where=square > 0))


def _alike(factors: Floats, axis: int) -> Floats:
    return np.asarray(np.median(factors, axis=axis, keepdims=True))


def _near(evidence: Evidence, a: Floats, b: Floats) -> bool:
    return float(np.linalg.norm(a - b)) <= 2 * limit(evidence) * float(np.linalg.norm(b))


HYPOTHESES: tuple[Hypothesis, ...] = (pair_scale,)
