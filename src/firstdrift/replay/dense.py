"""Products with weights: linear, convolutions and their transposes, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod, sqrt
from typing import Any

import numpy as np

from ..causes import formulas
from ..traces import Array
from .operation import Floats, Gradients, Inputs, Lazy, Operation, Parameters, as_floats

Sizes = tuple[int, ...]
PAD_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def linear(*, transposed: bool = False) -> Operation:
    """`x @ weight.T + bias`; `transposed` for weights stored as (in, out)."""

    def matrix(parameters: Parameters) -> Floats:
        return parameters["weight"].T if transposed else parameters["weight"]

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        return formulas.linear(inputs[0], matrix(parameters), parameters.get("bias"))

    def terms(inputs: Inputs, parameters: Parameters) -> float:
        x = _flat(inputs[0])
        energy = float(np.dot(np.square(x).sum(0), np.square(matrix(parameters)).sum(0)))
        return sqrt(energy + _bias_energy(parameters, len(x)))

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        g, x = _flat(gradient), _flat(inputs[0])
        found: dict[str, Lazy] = {"weight": lambda: x.T @ g if transposed else g.T @ x, "bias": lambda: g.sum(0)}
        into = [lambda: (g @ matrix(parameters)).reshape(inputs[0].shape)]
        return into, {port: item for port, item in found.items() if port in parameters}

    settings = {"transposed": True} if transposed else {}
    return Operation("linear", "linear", forward, settings, terms, backward)


def conv(
    *, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int = 1, mode: str = "zeros", out: Sizes | None = None
) -> Operation:
    """A convolution over any number of axes; `out` is its size where the padding behind differs from that before."""
    settings = {"stride": list(stride), "padding": list(padding), "dilation": list(dilation), "groups": groups}

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        weight, bias = parameters["weight"], parameters.get("bias")
        return formulas.conv(inputs[0], weight, bias, stride, padding, dilation, groups, mode, out)

    def terms(inputs: Inputs, parameters: Parameters) -> float:
        return _conv_terms(inputs[0], parameters, groups, prod(stride))

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        weight = parameters["weight"]
        pads = _pads(inputs[0].shape[2:], weight.shape[2:], gradient.shape[2:])
        g, places = _grouped(gradient, groups), list(product(*map(range, weight.shape[2:])))

        def into() -> Floats:
            found = np.zeros([n + before + behind for n, (before, behind) in zip(inputs[0].shape, pads, strict=True)])
            for place in places:
                kernel = weight[_at(place)].reshape(groups, weight.shape[0] // groups, weight.shape[1])
                seen = found[_slices(place, gradient.shape[2:], stride, dilation)]
                seen += (kernel.swapaxes(-1, -2) @ g).reshape(seen.shape)
            return found[tuple(slice(a, a + n) for n, (a, _) in zip(inputs[0].shape, pads, strict=True))]

        def of_weight() -> Floats:
            x = np.pad(inputs[0], pads, mode=PAD_MODES[mode])  # type: ignore[call-overload]
            found = np.zeros(weight.shape)
            for place in places:
                seen = _grouped(x[_slices(place, gradient.shape[2:], stride, dilation)], groups)
                found[_at(place)] = (g @ seen.swapaxes(-1, -2)).sum(0).reshape(weight.shape[:2])
            return found

        found: dict[str, Lazy] = {"weight": of_weight, "bias": lambda: _over_channels(gradient)}
        # What was padded by copies gives its gradient back in ways of its own.
        return [into if mode == "zeros" else None], {port: item for port, item in found.items() if port in parameters}

    def _pads(size: Sequence[int], kernel: Sequence[int], count: Sequence[int]) -> list[tuple[int, int]]:
        axes = zip(size, kernel, count, stride, padding, dilation, strict=True)
        return [(0, 0), (0, 0), *((p, max(0, s * (m - 1) + d * (k - 1) + 1 - n - p)) for n, k, m, s, p, d in axes)]

    return Operation("conv", "linear", forward, settings, terms, backward)


def conv_transposed(
    *, stride: Sizes, padding: Sizes, dilation: Sizes, output_padding: Sizes, groups: int = 1
) -> Operation:
    """The transpose of a convolution: every input element adds its kernel to the output."""
    settings = {
        "stride": list(stride), "padding": list(padding), "dilation": list(dilation), "groups": groups,
        "output_padding": list(output_padding),
    }  # fmt: skip

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        x, bias = inputs[0], parameters.get("bias")
        return formulas.conv_transpose(x, parameters["weight"], bias, stride, padding, output_padding, dilation, groups)

    def terms(inputs: Inputs, parameters: Parameters) -> float:
        weight = parameters["weight"]
        swapped = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)
        swapped = swapped.reshape(-1, weight.shape[0] // groups, *weight.shape[2:])
        return _conv_terms(inputs[0], {**parameters, "weight": swapped}, groups, 1)

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        weight, size = parameters["weight"], inputs[0].shape[2:]

        def into() -> Floats:
            return formulas.conv(gradient, weight, None, stride, padding, dilation, groups, out=size)

        def of_weight() -> Floats:
            axes = zip(padding, output_padding, strict=True)
            g = np.pad(gradient, [(0, 0), (0, 0), *((p, p + extra) for p, extra in axes)])
            x, found = _grouped(inputs[0], groups), np.zeros(weight.shape)
            for place in product(*map(range, weight.shape[2:])):
                seen = _grouped(g[_slices(place, size, stride, dilation)], groups)
                found[_at(place)] = (x @ seen.swapaxes(-1, -2)).sum(0).reshape(weight.shape[:2])
            return found

        found: dict[str, Lazy] = {"weight": of_weight, "bias": lambda: _over_channels(gradient)}
        return [into], {port: item for port, item in found.items() if port in parameters}

    return Operation("conv transposed", "linear", forward, settings, terms, backward)


def embedding(*, scale: float = 1.0) -> Operation:
    """The rows of a table."""

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        return scale * parameters["weight"][np.asarray(inputs[0], np.int64)]

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        width = parameters["weight"].shape[1]
        table = np.zeros(parameters["weight"].shape)
        np.add.at(table, np.asarray(inputs[0], np.int64).reshape(-1), scale * gradient.reshape(-1, width))
        return [None], {"weight": table}

    return Operation("embedding", "move", forward, {} if scale == 1.0 else {"scale": scale}, backward=backward)


def _flat(x: Array) -> Floats:
    return as_floats(x).reshape(-1, x.shape[-1])


def _bias_energy(parameters: Parameters, times: int) -> float:
    return times * float(np.square(parameters["bias"]).sum()) if "bias" in parameters else 0.0


def _conv_terms(x: Array, parameters: Parameters, groups: int, stride: int) -> float:
    """Terms by channel: every element of a channel meets every weight of that channel, but for the stride."""
    weight = parameters["weight"]
    energy = np.square(as_floats(x)).sum((0, *range(2, x.ndim))).reshape(groups, -1)
    kernels = np.square(weight).reshape(groups, weight.shape[0] // groups, weight.shape[1], -1).sum((1, 3))
    places = len(x) * prod(x.shape[2:]) // stride
    return sqrt(float((energy * kernels).sum()) / stride + _bias_energy(parameters, places))


def _over_channels(gradient: Floats) -> Floats:
    return np.asarray(gradient.sum((0, *range(2, gradient.ndim))))


def _grouped(x: Array, groups: int) -> Floats:
    return as_floats(x).reshape(len(x), groups, x.shape[1] // groups, -1)


def _at(place: Sizes) -> Any:
    """One element of every kernel."""
    return (..., *place)


def _slices(place: Sizes, size: Sequence[int], stride: Sizes, dilation: Sizes) -> tuple[slice, ...]:
    """Where an element of the kernel meets a padded input, in the order of the output."""
    axes = zip(place, size, stride, dilation, strict=True)
    return (slice(None), slice(None), *(slice(k * d, k * d + s * (n - 1) + 1, s) for k, n, s, d in axes))
