"""Activations, each with its derivative; softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt

import numpy as np

from ..causes.formulas import ACTIVATIONS, activation, erf
from .operation import Floats, Gradients, Inputs, Operation, Parameters

Function = Callable[[Floats], Floats]


def _sigmoid(x: Floats) -> Floats:
    return activation("sigmoid", x)


def _swish_slope(x: Floats, beta: float = 1.0) -> Floats:
    s = _sigmoid(beta * x)
    return s * (1 + beta * x * (1 - s))


def _gelu_tanh_slope(x: Floats) -> Floats:
    rate, cubic = sqrt(2 / pi), 0.044715
    t = np.tanh(rate * (x + cubic * x**3))
    return np.asarray(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * rate * (1 + 3 * cubic * x * x))


def _mish_slope(x: Floats) -> Floats:
    t = np.tanh(activation("softplus", x))
    return np.asarray(t + x * (1 - t * t) * _sigmoid(x))


def _between(low: float, high: float, slope: float = 1.0) -> Function:
    return lambda x: np.where((x > low) & (x < high), slope, 0.0)


SLOPES: dict[str, Function] = {
    "relu": lambda x: np.where(x > 0, 1.0, 0.0),
    "relu6": _between(0.0, 6.0),
    "relu_squared": lambda x: 2 * np.maximum(x, 0.0),
    "gelu": lambda x: 0.5 * (1 + erf(x / sqrt(2))) + x * np.exp(-0.5 * x * x) / sqrt(2 * pi),
    "gelu_tanh": _gelu_tanh_slope,
    "quick_gelu": lambda x: _swish_slope(x, 1.702),
    "silu": _swish_slope,
    "mish": _mish_slope,
    "sigmoid": lambda x: _sigmoid(x) * _sigmoid(-x),
    "hard_sigmoid": _between(-3.0, 3.0, 1 / 6),
    "hard_swish": lambda x: np.where(x <= -3, 0.0, np.where(x >= 3, 1.0, (2 * x + 3) / 6)),
    "hard_tanh": _between(-1.0, 1.0),
    "tanh": lambda x: 1 - np.tanh(x) ** 2,
    "softsign": lambda x: 1 / (1 + np.abs(x)) ** 2,
    "selu": lambda x: np.where(x > 0, 1.0507009873554805, activation("selu", x) + 1.7580993408473766),
}


def plain(name: str) -> Operation:
    """An activation without settings, by its name."""
    return _elementwise(name, ACTIVATIONS[name], SLOPES.get(name))


def leaky_relu(slope: float) -> Operation:
    """A line of another slope below zero."""
    settings = {"slope": slope}
    return _elementwise(
        "leaky_relu", lambda x: np.where(x > 0, x, slope * x), lambda x: np.where(x > 0, 1.0, slope), settings
    )


def elu(alpha: float) -> Operation:
    """An exponential below zero."""
    return _elementwise(
        "elu",
        lambda x: np.where(x > 0, x, alpha * activation("elu", x)),
        lambda x: np.where(x > 0, 1.0, alpha * np.exp(np.minimum(x, 0.0))),
        {"alpha": alpha},
    )


def softplus(beta: float, threshold: float) -> Operation:
    """A smooth ReLU, and a line beyond the threshold."""
    return _elementwise(
        "softplus",
        lambda x: np.where(beta * x > threshold, x, activation("softplus", beta * x) / beta),
        lambda x: np.where(beta * x > threshold, 1.0, _sigmoid(beta * x)),
        {"beta": beta, "threshold": threshold},
    )


def clipped(low: float, high: float) -> Operation:
    """A line between two bounds."""
    return _elementwise("clip", lambda x: np.clip(x, low, high), _between(low, high), {"low": low, "high": high})


def softmax(*, axis: int, log: bool = False) -> Operation:
    """Exponentials along an axis that sum to one, or their logarithms."""

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        x = inputs[0]
        with np.errstate(invalid="ignore"):
            shifted = x - x.max(axis, keepdims=True)
        total = np.exp(shifted).sum(axis, keepdims=True)
        return np.asarray(shifted - np.log(total) if log else np.exp(shifted) / total)

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        y = forward(inputs, parameters)
        if log:
            return [gradient - np.exp(y) * gradient.sum(axis, keepdims=True)], {}
        return [y * (gradient - (gradient * y).sum(axis, keepdims=True))], {}

    name = "log_softmax" if log else "softmax"
    return Operation(name, "activation", forward, {"axis": axis}, backward=backward, rows=axis != 0)


def _elementwise(
    name: str, value: Function, slope: Function | None, settings: Mapping[str, float] | None = None
) -> Operation:
    """A function of single elements as an operation."""

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        return np.asarray(value(inputs[0]))

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        assert slope is not None
        return [gradient * slope(inputs[0])], {}

    return Operation(name, "activation", forward, settings or {}, backward=backward if slope else None)
