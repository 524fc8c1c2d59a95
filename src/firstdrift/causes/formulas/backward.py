"""Gradients of inputs and weights: normalisations, convolutions, pools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .pools import max_pool, pool_divisor
from .windows import Axis

Floats = NDArray[np.float64]
Sizes = Sequence[int]
Pads = list[tuple[int, int]]

NUMPY_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def through_norm(gradient: Floats, normal: Floats, axes: tuple[int, ...], centre: bool = True) -> Floats:
    """The gradient before a normalisation, but for its scale, from that of the normalised values."""
    into = gradient - normal * (gradient * normal).mean(axes, keepdims=True)
    return np.asarray(into - gradient.mean(axes, keepdims=True) if centre else into)


def conv_input_gradient(
    gradient: Floats, weight: Floats, shape: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int = 1
) -> Floats:
    """The gradient of a convolution's input of this shape, padded with zeros, from that of its output."""
    pads = _pads(shape, weight.shape[2:], gradient.shape[2:], stride, padding, dilation)
    found = np.zeros([n + before + behind for n, (before, behind) in zip(shape, pads, strict=True)])
    g = _grouped(gradient, groups)
    for tap in product(*map(range, weight.shape[2:])):
        kernel = weight[_at(tap)].reshape(groups, weight.shape[0] // groups, weight.shape[1])
        seen = found[_met(tap, gradient.shape[2:], stride, dilation)]
        seen += (kernel.swapaxes(-1, -2) @ g).reshape(seen.shape)
    return _cut(found, shape, pads)


def conv_weight_gradient(
    x: Floats, gradient: Floats, shape: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int = 1,
    mode: str = "zeros",
) -> Floats:  # fmt: skip
    """The gradient of a convolution's weight of this shape, from that of its output."""
    pads = _pads(x.shape, shape[2:], gradient.shape[2:], stride, padding, dilation)
    padded = np.pad(x, pads, mode=NUMPY_MODES[mode])  # type: ignore[call-overload]
    found, g = np.zeros(shape), _grouped(gradient, groups)
    for tap in product(*map(range, shape[2:])):
        seen = _grouped(padded[_met(tap, gradient.shape[2:], stride, dilation)], groups)
        found[_at(tap)] = (g @ seen.swapaxes(-1, -2)).sum(0).reshape(found.shape[:2])
    return found


def max_pool_gradient(
    x: Floats, gradient: Floats, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes | None = None,
    ties: str = "first",
) -> Floats:  # fmt: skip
    """The gradient before a pool that takes the largest: of tied elements for the first one, the last, or all."""
    step, size = dilation or (1,) * len(kernel), gradient.shape[-len(kernel) :]
    pads = _pads(x.shape, kernel, size, stride, padding, step)
    into = np.zeros([n + before + behind for n, (before, behind) in zip(x.shape, pads, strict=True)])
    padded = np.pad(x, pads, constant_values=-np.inf)
    largest = max_pool(x, kernel, stride, padding, step, out=size)
    free = np.ones(largest.shape, bool)
    taps = list(product(*map(range, kernel)))
    for tap in taps[::-1] if ties == "last" else taps:
        place = _windows(tap, size, stride, step)
        here = free & (padded[place] == largest)
        into[place] += np.where(here, gradient, 0.0)
        if ties != "all":
            free &= ~here
    return _cut(into, x.shape, pads)


def avg_pool_gradient(
    shape: Sizes, gradient: Floats, kernel: Sizes, stride: Sizes, padding: Sizes, count_pad: bool = True
) -> Floats:
    """The gradient before a pool that takes the mean of windows, of an input of this shape."""
    size, step = gradient.shape[-len(kernel) :], (1,) * len(kernel)
    axes = [Axis(k, s, p) for k, s, p in zip(kernel, stride, padding, strict=True)]
    share = gradient / pool_divisor(shape[-len(kernel) :], axes, size, count_pad, False)
    pads = _pads(shape, kernel, size, stride, padding, step)
    into = np.zeros([n + before + behind for n, (before, behind) in zip(shape, pads, strict=True)])
    for tap in product(*map(range, kernel)):
        into[_windows(tap, size, stride, step)] += share
    return _cut(into, shape, pads)


def bins(shape: Sizes, size: Sizes) -> Iterator[tuple[Any, Any]]:
    """The bins of an adaptive pool: which element of the output each is, and which elements of the input it holds."""
    lead = (slice(None),) * (len(shape) - len(size))
    for place in product(*map(range, size)):
        axes = zip(place, shape[-len(size) :], size, strict=True)
        yield (..., *place), (*lead, *(slice(i * n // count, -(-(i + 1) * n // count)) for i, n, count in axes))


def bins_gradient(x: Floats, gradient: Floats, size: Sizes, largest: bool) -> Floats:
    """The gradient before an adaptive pool."""
    into = np.zeros(x.shape)
    for place, window in bins(x.shape, size):
        g, seen = gradient[place], x[window]
        flat = seen.reshape(*x.shape[: -len(size)], -1)
        share = np.zeros(flat.shape)
        if largest:
            np.put_along_axis(share, flat.argmax(-1)[..., None], g[..., None], -1)
        else:
            share += g[..., None] / flat.shape[-1]
        into[window] += share.reshape(seen.shape)
    return into


def _pads(shape: Sizes, kernel: Sizes, count: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Pads:
    """What lies before and behind the input, as far as windows reach."""
    axes = zip(shape[-len(kernel) :], kernel, count, stride, padding, dilation, strict=True)
    around = [(p, max(0, s * (m - 1) + d * (k - 1) + 1 - n - p)) for n, k, m, s, p, d in axes]
    return [(0, 0)] * (len(shape) - len(kernel)) + around


def _cut(padded: Floats, shape: Sizes, pads: Pads) -> Floats:
    """What lies between the padding."""
    return padded[tuple(slice(before, before + n) for n, (before, _) in zip(shape, pads, strict=True))]


def _windows(tap: Sizes, size: Sizes, stride: Sizes, dilation: Sizes) -> Any:
    """Where an element of every window lies in the padded input, in the order of the output."""
    axes = zip(tap, dilation, stride, size, strict=True)
    return (..., *(slice(k * d, k * d + s * (m - 1) + 1, s) for k, d, s, m in axes))


def _met(tap: Sizes, size: Sizes, stride: Sizes, dilation: Sizes) -> Any:
    """Where an element of the kernel meets a padded input, in the order of the output."""
    return (slice(None), slice(None), *_windows(tap, size, stride, dilation)[1:])


def _at(tap: Sizes) -> Any:
    """One element of every kernel."""
    return (..., *tap)


def _grouped(x: Floats, groups: int) -> Floats:
    return x.reshape(len(x), groups, x.shape[1] // groups, -1)
