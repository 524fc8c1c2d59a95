"""Pools: the largest or the mean of windows, of bins, or of everything."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from ..causes import formulas
from ..causes.formulas import Axis, output_size
from ..strict_json import Json
from .operation import Floats, Gradients, Inputs, Operation, Parameters

Sizes = tuple[int, ...]
Pads = list[tuple[int, int]]
Index = Any  # of an array: slices and numbers


def pool(
    *, largest: bool, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes | None = None, ceil: bool = False,
    count_padding: bool = True,
) -> Operation:  # fmt: skip
    """Windows that slide over the last axes."""
    step = dilation or (1,) * len(kernel)
    settings: dict[str, Json] = {"kernel": list(kernel), "stride": list(stride), "padding": list(padding)}
    settings |= {"ceil": True} if ceil else {}
    settings |= {} if largest or count_padding or not any(padding) else {"count_padding": False}

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        x = inputs[0]
        if largest:
            return formulas.max_pool(x, kernel, stride, padding, step, ceil=ceil)
        return formulas.avg_pool(x, kernel, stride, padding, count_padding, ceil=ceil)

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        x, size = inputs[0], gradient.shape[-len(kernel) :]
        pads = _pads(x.shape, size)
        into = np.zeros([n + before + behind for n, (before, behind) in zip(x.shape, pads, strict=True)])
        if largest:
            padded, y = np.pad(x, pads, constant_values=-np.inf), forward(inputs, parameters)
            free = np.ones(y.shape, bool)  # of tied elements the first one gets the gradient
            for place in _places(size):
                here = free & (padded[place] == y)
                into[place] += np.where(here, gradient, 0.0)
                free &= ~here
        else:
            axes = [Axis(k, s, p) for k, s, p in zip(kernel, stride, padding, strict=True)]
            spatial = x.shape[-len(kernel) :]
            share = gradient / formulas.pool_divisor(spatial, axes, size, count_padding, False)
            for place in _places(size):
                into[place] += share
        return [into[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, pads, strict=True))]], {}

    def _pads(shape: Sizes, size: Sizes) -> Pads:
        """What lies before and behind the input, as far as windows reach."""
        axes = zip(shape[-len(kernel) :], size, kernel, stride, padding, step, strict=True)
        around = [(p, max(0, s * (m - 1) + d * (k - 1) + 1 - n - p)) for n, m, k, s, p, d in axes]
        return [(0, 0)] * (len(shape) - len(kernel)) + around

    def _places(size: Sizes) -> Iterator[Index]:
        """For every element of a window, which elements of the padded input it is, in the order of the output."""
        for place in product(*map(range, kernel)):
            axes = zip(place, step, stride, size, strict=True)
            yield (..., *(slice(k * d, k * d + s * (m - 1) + 1, s) for k, d, s, m in axes))

    name = "max pool" if largest else "average pool"
    return Operation(name, "move", forward, settings, backward=backward)


def pool_size(size: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, *, ceil: bool) -> Sizes:
    """How many windows there are along each axis."""
    axes = zip(size, kernel, stride, padding, strict=True)
    return tuple(output_size(n, Axis(k, s, p), p, ceil) for n, k, s, p in axes)


def bins(*, largest: bool, size: Sizes) -> Operation:
    """As many bins as asked for, of sizes as equal as they can be: adaptive pools, and global ones."""
    over = tuple(range(-len(size), 0))

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        x = inputs[0]
        if not largest:
            return formulas.adaptive_avg_pool(x, size)
        y = np.empty((*x.shape[: -len(size)], *size))
        for place, window in _bins(x.shape, size):
            y[place] = x[window].max(over)
        return y

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        x = inputs[0]
        into = np.zeros(x.shape)
        for place, window in _bins(x.shape, size):
            g, seen = gradient[place], x[window]
            flat = seen.reshape(*x.shape[: -len(size)], -1)
            share = np.zeros(flat.shape)
            if largest:
                np.put_along_axis(share, flat.argmax(-1)[..., None], g[..., None], -1)
            else:
                share += g[..., None] / flat.shape[-1]
            into[window] += share.reshape(seen.shape)
        return [into], {}

    name = "max over bins" if largest else "mean over bins"
    return Operation(name, "move", forward, {"size": list(size)}, backward=backward)


def _bins(shape: Sizes, size: Sizes) -> Iterator[tuple[Index, Index]]:
    lead = (slice(None),) * (len(shape) - len(size))
    for place in product(*map(range, size)):
        axes = zip(place, shape[-len(size) :], size, strict=True)
        yield (..., *place), (*lead, *(slice(i * n // count, -(-(i + 1) * n // count)) for i, n, count in axes))
