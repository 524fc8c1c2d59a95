"""Normalisations: layer, RMS, batch and group, forward and backward."""

from __future__ import annotations

from math import sqrt

import numpy as np

from ..causes import formulas
from ..strict_json import Json
from .operation import Floats, Gradients, Inputs, Operation, Parameters, squares

Axes = tuple[int, ...]


def layer_norm(*, axes: int, eps: float) -> Operation:
    """Over the last `axes` axes: mean zero, variance one."""
    return _over_last("layer norm", axes, eps, {"axes": axes, "eps": eps}, centre=True)


def rms_norm(*, axes: int, eps: float, plus_one: bool) -> Operation:
    """Over the last `axes` axes: mean square one; with `plus_one`, weights are offsets from one."""
    settings: dict[str, Json] = {"axes": axes, "eps": eps, **({"plus_one": True} if plus_one else {})}
    return _over_last("RMS norm", axes, eps, settings, centre=False, plus_one=plus_one)


def batch_norm(*, eps: float, training: bool) -> Operation:
    """By channel: with the statistics of this batch in training, with the running ones otherwise."""

    def running(parameters: Parameters) -> tuple[Floats | None, Floats | None]:
        return (None, None) if training else (parameters["running_mean"], parameters["running_var"])

    def scale(x: Floats, parameters: Parameters) -> Floats:
        variance = x.var((0, *range(2, x.ndim))) if training else parameters["running_var"]
        return _channel(1 / np.sqrt(variance + eps), x.ndim)

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        weight, bias = parameters.get("weight"), parameters.get("bias")
        return formulas.batch_norm(inputs[0], *running(parameters), weight, bias, eps)

    def terms(inputs: Inputs, parameters: Parameters) -> float:
        x = inputs[0]
        return _terms(x * scale(x, parameters), parameters)

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        x = inputs[0]
        y = formulas.batch_norm(x, *running(parameters), eps=eps)
        over = (0, *range(2, x.ndim))
        g = gradient * _channel(parameters["weight"], x.ndim) if "weight" in parameters else gradient
        into = formulas.through_norm(g, y, over, True) if training else g
        return [into * scale(x, parameters)], _affine_gradients(gradient, y, over, parameters)

    settings: dict[str, Json] = {"eps": eps, "training": training}
    return Operation("batch norm", "norm", forward, settings, terms, backward, rows=not training)


def group_norm(*, groups: int, eps: float) -> Operation:
    """By group of channels, of each sample: mean zero, variance one."""

    def scale(x: Floats) -> Floats:
        return 1 / np.sqrt(x.reshape(len(x), groups, -1).var(2, keepdims=True) + eps)  # type: ignore[no-any-return]

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        weight, bias = parameters.get("weight"), parameters.get("bias")
        return formulas.group_norm(inputs[0], groups, weight, bias, eps)

    def terms(inputs: Inputs, parameters: Parameters) -> float:
        x = inputs[0]
        return _terms((x.reshape(len(x), groups, -1) * scale(x)).reshape(x.shape), parameters)

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        x = inputs[0]
        y = formulas.group_norm(x, groups, eps=eps)
        g = gradient * _channel(parameters["weight"], x.ndim) if "weight" in parameters else gradient
        parts = (len(x), groups, -1)
        into = formulas.through_norm(g.reshape(parts), y.reshape(parts), (2,), True) * scale(x)
        return [into.reshape(x.shape)], _affine_gradients(gradient, y, (0, *range(2, x.ndim)), parameters)

    return Operation("group norm", "norm", forward, {"groups": groups, "eps": eps}, terms, backward)


def _over_last(
    name: str, axes: int, eps: float, settings: dict[str, Json], *, centre: bool, plus_one: bool = False
) -> Operation:
    """A norm over the last axes, whose weights have the shape of those axes."""
    over = tuple(range(-axes, 0))

    def gain(parameters: Parameters) -> Floats | float:
        return parameters["weight"] + (1.0 if plus_one else 0.0) if "weight" in parameters else 1.0

    def scale(x: Floats) -> Floats:
        square = x.var(over, keepdims=True) if centre else np.square(x).mean(over, keepdims=True)
        return 1 / np.sqrt(square + eps)  # type: ignore[no-any-return]

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        y = formulas.normalised(inputs[0], over, eps, centre) * gain(parameters)
        return y + parameters["bias"] if "bias" in parameters else y

    def terms(inputs: Inputs, parameters: Parameters) -> float:
        x, bias = inputs[0], parameters.get("bias")
        y = x * scale(x) * gain(parameters)
        return sqrt(squares(y) + (0.0 if bias is None else y.size / bias.size * squares(bias)))

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        x = inputs[0]
        y = formulas.normalised(x, over, eps, centre)
        into = formulas.through_norm(gradient * gain(parameters), y, over, centre) * scale(x)
        return [into], _affine_gradients(gradient, y, tuple(range(gradient.ndim - axes)), parameters)

    return Operation(name, "norm", forward, settings, terms, backward)


def _affine_gradients(gradient: Floats, y: Floats, over: Axes, parameters: Parameters) -> dict[str, Floats]:
    found = {"weight": (gradient * y).sum(over), "bias": gradient.sum(over)}
    return {port: item for port, item in found.items() if port in parameters}


def _channel(item: Floats, ndim: int) -> Floats:
    return item.reshape(-1, *[1] * (ndim - 2))


def _terms(y: Floats, parameters: Parameters) -> float:
    if "weight" in parameters:
        y = y * _channel(parameters["weight"], y.ndim)
    bias = parameters.get("bias")
    return sqrt(squares(y) + (0.0 if bias is None else y.size / bias.size * squares(bias)))
