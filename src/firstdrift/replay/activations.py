"""Activations, each with its derivative; softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..causes.formulas import ACTIVATIONS, SLOPES, activation, between, softmax_backward
from .operation import Floats, Gradients, Inputs, Operation, Parameters

Function = Callable[[Floats], Floats]


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
        lambda x: np.where(beta * x > threshold, 1.0, activation("sigmoid", beta * x)),
        {"beta": beta, "threshold": threshold},
    )


def clipped(low: float, high: float) -> Operation:
    """A line between two bounds."""
    return _elementwise("clip", lambda x: np.clip(x, low, high), between(low, high), {"low": low, "high": high})


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
        return [softmax_backward(np.exp(y) if log else y, gradient, axis, log)], {}

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
