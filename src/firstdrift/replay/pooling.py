"""Pools: the largest or the mean of windows, of bins, or of everything."""

from __future__ import annotations

import numpy as np

from ..causes import formulas
from ..causes.formulas import Axis, output_size
from ..strict_json import Json
from .operation import Floats, Gradients, Inputs, Operation, Parameters

Sizes = tuple[int, ...]


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
        x = inputs[0]
        if largest:
            return [formulas.max_pool_gradient(x, gradient, kernel, stride, padding, step)], {}
        return [formulas.avg_pool_gradient(x.shape, gradient, kernel, stride, padding, count_padding)], {}

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
        for place, window in formulas.bins(x.shape, size):
            y[place] = x[window].max(over)
        return y

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        return [formulas.bins_gradient(inputs[0], gradient, size, largest)], {}

    name = "max over bins" if largest else "mean over bins"
    return Operation(name, "move", forward, {"size": list(size)}, backward=backward)
