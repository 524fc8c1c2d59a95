"""Gradients of a maximum that several elements share: one side gives it to one of them, the other to several in parts.

Both are subgradients. It is legal where each side gives gradient to its own maxima alone, and both give as much to
every window. Where both give all of it to one element, and not to the same one, rounding must have decided: which of
exact equals comes first, everybody else agrees on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SIZES = (2, 3, 4)  # of windows that do not overlap
TELLING = 0.25  # of the elements are below the largest of their window: where all are equal, nothing tells a maximum
SHARED = "shared otherwise among equal elements"


def shared_maxima(ours: Floats, theirs: Floats, x: Floats, z: Floats, limit: float) -> int | None:
    """The number of windows whose gradient went to other ones of equal maxima, if that explains the difference.

    `x` and `z` are both sides' own values. What lies below zero may get nothing, as before a ReLU.
    """
    for axes, sizes in _windows(x.shape):
        a = _cut(ours, axes, sizes)
        if not _at_maxima(a, _cut(x, axes, sizes)):
            continue
        b = _cut(theirs, axes, sizes)
        if not _at_maxima(b, _cut(z, axes, sizes)):
            continue
        sums = a.sum(-1), b.sum(-1)
        kept = sum(float(np.sum(one * one)) for one in (a, b))
        whole = sum(float(np.sum(one * one)) for one in (ours, theirs))
        if kept < whole or np.linalg.norm(sums[1] - sums[0]) > limit * np.linalg.norm(sums[0]):
            continue  # some gradient lies beyond the windows, or some window has another
        slack = limit * float(np.sqrt(np.mean(ours**2)))
        moved = (np.abs(b - a) > slack).sum(-1) > 1
        parted = ((a != 0).sum(-1) > 1) | ((b != 0).sum(-1) > 1)
        rounded = _is_below(b, _cut(x, axes, sizes)) | _is_below(a, _cut(z, axes, sizes))
        if moved.any() and (parted | rounded)[moved].all():
            return int(moved.sum())
    return None


def _windows(shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Axes and sizes of windows: pools along two axes or one, and maxima over a whole axis or two."""
    space = range(1, len(shape))
    pairs = list(pairwise(space))
    for axes in (*pairs, *((axis,) for axis in space)):
        whole = tuple(shape[axis] for axis in axes)
        if min(whole) < 2:
            continue
        yield from ((axes, (size,) * len(axes)) for size in SIZES if size < min(whole))
        yield axes, whole


def _cut(array: Floats, axes: tuple[int, ...], sizes: tuple[int, ...]) -> Floats:
    """Windows, their elements along the last axis; what is left over at the ends is cut off."""
    for axis, size in zip(axes, sizes, strict=True):
        array = np.take(array, range(array.shape[axis] // size * size), axis)
    for axis, size in sorted(zip(axes, sizes, strict=True), reverse=True):
        array = array.reshape(*array.shape[:axis], array.shape[axis] // size, size, *array.shape[axis + 1 :])
    inner = [axis + number + 1 for number, axis in enumerate(sorted(axes))]
    outer = [axis for axis in range(array.ndim) if axis not in inner]
    return array.transpose(*outer, *inner).reshape(*(array.shape[axis] for axis in outer), -1)


def _is_below(gradient: Floats, values: Floats) -> NDArray[np.bool_]:
    """The windows of one side where what the other side chose is not the largest: rounding decided."""
    return np.asarray(np.any((gradient != 0) & (values < values.max(-1, keepdims=True)), -1))


def _at_maxima(gradient: Floats, values: Floats) -> bool:
    """Whether nothing but the largest of each window gets any gradient, and there is enough else to tell."""
    below = values < values.max(-1, keepdims=True)
    return float(below.mean()) >= TELLING and not gradient[below].any()
