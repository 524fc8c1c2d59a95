"""Products with weights: linear, convolutions and their transposes, embeddings."""

from __future__ import annotations

from math import prod, sqrt

import numpy as np

from ..causes import formulas
from ..traces import Array
from .operation import Floats, Gradients, Inputs, Lazy, Operation, Parameters, as_floats

Sizes = tuple[int, ...]


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
        weight, x = parameters["weight"], inputs[0]

        def into() -> Floats:
            return formulas.conv_input_gradient(gradient, weight, x.shape, stride, padding, dilation, groups)

        def of_weight() -> Floats:
            return formulas.conv_weight_gradient(x, gradient, weight.shape, stride, padding, dilation, groups, mode)

        found: dict[str, Lazy] = {"weight": of_weight, "bias": lambda: _over_channels(gradient)}
        # What was padded by copies gives its gradient back in ways of its own.
        return [into if mode == "zeros" else None], {port: item for port, item in found.items() if port in parameters}

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
            # The transpose's input and the gradient of its output change places in the convolution it belongs to.
            return formulas.conv_weight_gradient(gradient, inputs[0], weight.shape, stride, padding, dilation, groups)

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
