"""Resizing by interpolation, one axis after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESIZE_MODES = ("nearest", "nearest-exact", "linear", "cubic", "area")
REACH = {"linear": 1.0, "cubic": 2.0, "lanczos": 3.0}  # pixels to either side from which a filter takes


def interpolate(
    x: Floats, out: Sequence[int], mode: str = "linear", align_corners: bool = False,
    scale: Sequence[float] | None = None, half_pixel: bool = True, cubic: float = -0.75, antialias: bool = False,
) -> Floats:  # fmt: skip
    """Resize the last axes to `out`.

    `scale` is output over input where the operation was given it rather than a size. Without corners aligned, the
    middle of a pixel stands for it (`half_pixel`) or else its left edge. `cubic` is the a of the cubic kernel. With
    `antialias`, the filter is as wide as the pixels of the smaller image.
    """
    for number, count in enumerate(out):
        at = x.ndim - len(out) + number
        ratio = None if scale is None else 1.0 / scale[number]
        if antialias:
            matrix = antialias_matrix(x.shape[at], count, mode, align_corners, ratio, cubic)
        else:
            matrix = resize_matrix(x.shape[at], count, mode, align_corners, ratio, half_pixel, cubic)
        x = np.moveaxis(np.moveaxis(x, at, -1) @ matrix.T, -1, at)
    return x


def resize_matrix(
    size: int, out: int, mode: str, align_corners: bool = False, ratio: float | None = None, half_pixel: bool = True,
    cubic: float = -0.75,
) -> Floats:  # fmt: skip
    """The weights (out, size) with which each output takes from the inputs along one axis."""
    at = np.arange(out)
    step = size / out if ratio is None else ratio
    if mode == "area":
        return _area(size, out)
    if mode == "nearest":
        return _gather(np.floor(at * step).astype(np.intp)[:, None], np.ones((out, 1)), size)
    if mode == "nearest-exact":
        return _gather(np.floor((at + 0.5) * step).astype(np.intp)[:, None], np.ones((out, 1)), size)
    if align_corners:
        position = at * ((size - 1) / (out - 1) if out > 1 else 0.0)
    else:
        position = (at + 0.5) * step - 0.5 if half_pixel else at * step
    if mode == "linear":
        position = np.clip(position, 0.0, None)
        low = np.floor(position).astype(np.intp)
        part = position - low
        return _gather(low[:, None] + [0, 1], np.stack([1 - part, part], 1), size)
    low = np.floor(position).astype(np.intp)
    taps = low[:, None] + [-1, 0, 1, 2]
    return _gather(taps, _cubic(np.abs(position[:, None] - taps), cubic), size)


def antialias_matrix(
    size: int, out: int, mode: str, align_corners: bool = False, ratio: float | None = None, cubic: float = -0.5
) -> Floats:
    """The weights (out, size) of a filter that is stretched by the ratio of the sizes where the image gets smaller."""
    step = size / out if ratio is None else ratio
    if align_corners:
        step = (size - 1) / (out - 1) if out > 1 else 0.0
    stretch = max(step, 1.0)
    reach = REACH[mode] * stretch
    middle = (np.arange(out)[:, None] + 0.5) * step
    at = np.arange(size)[None]
    taken = (at >= np.floor(middle - reach + 0.5)) & (at < np.floor(middle + reach + 0.5))
    distance = np.abs((at + 0.5 - middle) / stretch)
    if mode == "linear":
        weights = np.maximum(1 - distance, 0.0)
    elif mode == "cubic":
        weights = _cubic(distance, cubic)
    else:
        weights = np.where(distance < 3, np.sinc(distance) * np.sinc(distance / 3), 0.0)
    weights = np.where(taken, weights, 0.0)
    total = weights.sum(1, keepdims=True)
    return np.asarray(weights / np.where(total == 0, 1.0, total))


def _gather(taps: NDArray[np.intp], weights: Floats, size: int) -> Floats:
    """The matrix of some taps, where what lies beyond a border is the element at the border."""
    matrix = np.zeros((len(taps), size))
    rows = np.broadcast_to(np.arange(len(taps))[:, None], taps.shape)
    np.add.at(matrix, (rows, np.clip(taps, 0, size - 1)), weights)
    return matrix


def _cubic(distance: Floats, a: float) -> Floats:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _area(size: int, out: int) -> Floats:
    matrix = np.zeros((out, size))
    for row in range(out):
        low, high = row * size // out, -(-(row + 1) * size // out)
        matrix[row, low:high] = 1 / (high - low)
    return matrix
