"""Pools: the mean or maximum of a window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .dense import axes_of
from .windows import Axis, output_size, pad

Floats = NDArray[np.float64]
Setting = int | Sequence[int]


def max_pool(
    x: Floats, kernel: Setting, stride: Setting, padding: Setting = 0, dilation: Setting = 1,
    out: Sequence[int] | None = None, ceil: bool = False,
) -> Floats:  # fmt: skip
    """The maximum of each window; padding never wins."""
    axes = _axes(x, kernel, stride, padding, dilation)
    for number, (axis, count) in enumerate(zip(axes, out or _sizes(x, axes, ceil), strict=True)):
        at = x.ndim - len(axes) + number
        sources = axis.sources(np.arange(count), x.shape[at])
        best = pad(x, at, sources[:, 0], -np.inf)
        for tap in range(1, axis.kernel):
            best = np.maximum(best, pad(x, at, sources[:, tap], -np.inf))
        x = best
    return x


def avg_pool(
    x: Floats, kernel: Setting, stride: Setting, padding: Setting = 0, count_pad: bool = True,
    out: Sequence[int] | None = None, ceil: bool = False, overhang: bool = False,
) -> Floats:  # fmt: skip
    """The mean of each window: zero padding counts with `count_pad`, what lies beyond it only with `overhang`."""
    axes = _axes(x, kernel, stride, padding, 1)
    sizes = tuple(x.shape[x.ndim - len(axes) :])
    counts = tuple(out or _sizes(x, axes, ceil))
    for number, (axis, count) in enumerate(zip(axes, counts, strict=True)):
        at = x.ndim - len(axes) + number
        sources = axis.sources(np.arange(count), x.shape[at])
        total = pad(x, at, sources[:, 0])
        for tap in range(1, axis.kernel):
            total = total + pad(x, at, sources[:, tap])
        x = total
    return x / pool_divisor(sizes, axes, counts, count_pad, overhang)


def pool_divisor(
    sizes: Sequence[int], axes: Sequence[Axis], out: Sequence[int], count_pad: bool, overhang: bool
) -> Floats:
    """By what the sum of each window is divided: all elements of it that count."""
    divisor = np.ones(())
    for size, axis, count in zip(sizes, axes, out, strict=True):
        positions = axis.positions(np.arange(count))
        if overhang and count_pad:
            counted = np.full(count, axis.kernel)
        else:
            low, high = (-axis.before, size + axis.before) if count_pad else (0, size)
            counted = ((positions >= low) & (positions < high)).sum(1)
        divisor = divisor[..., None] * np.maximum(counted, 1)
    return np.asarray(divisor, np.float64)


def adaptive_avg_pool(x: Floats, out: Sequence[int]) -> Floats:
    """The means of parts that cover each axis as evenly as can be."""
    for number, count in enumerate(out):
        at = x.ndim - len(out) + number
        size = x.shape[at]
        parts = [np.arange(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        x = np.stack([np.take(x, part, axis=at).mean(at) for part in parts], at)
    return x


def _axes(x: Floats, kernel: Setting, stride: Setting, padding: Setting, dilation: Setting) -> tuple[Axis, ...]:
    sizes = (kernel,) * (x.ndim - 2) if isinstance(kernel, int) else tuple(kernel)
    return axes_of(sizes, stride, padding, dilation)


def _sizes(x: Floats, axes: Sequence[Axis], ceil: bool) -> tuple[int, ...]:
    sizes = x.shape[x.ndim - len(axes) :]
    return tuple(output_size(size, axis, axis.before, ceil) for size, axis in zip(sizes, axes, strict=True))
