"""Derivatives of activation functions by name, and the backward of softmax."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray

from .activations import activation, erf, sigmoid

Floats = NDArray[np.float64]
Function = Callable[[Floats], Floats]


def between(low: float, high: float, slope: float = 1.0) -> Function:
    """The slope of a line that ends at two bounds."""
    return lambda x: np.where((x > low) & (x < high), slope, 0.0)


def _swish(x: Floats, beta: float = 1.0) -> Floats:
    s = sigmoid(beta * x)
    return s * (1 + beta * x * (1 - s))


def _gelu_tanh(x: Floats) -> Floats:
    rate, cubic = sqrt(2 / pi), 0.044715
    t = np.tanh(rate * (x + cubic * x**3))
    return np.asarray(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * rate * (1 + 3 * cubic * x * x))


def _mish(x: Floats) -> Floats:
    t = np.tanh(activation("softplus", x))
    return np.asarray(t + x * (1 - t * t) * sigmoid(x))


SLOPES: dict[str, Function] = {
    "relu": lambda x: np.where(x > 0, 1.0, 0.0),
    "relu6": between(0.0, 6.0),
    "leaky_relu": lambda x: np.where(x > 0, 1.0, 0.01),
    "relu_squared": lambda x: 2 * np.maximum(x, 0.0),
    "elu": lambda x: np.where(x > 0, 1.0, np.exp(np.minimum(x, 0.0))),
    "gelu": lambda x: 0.5 * (1 + erf(x / sqrt(2))) + x * np.exp(-0.5 * x * x) / sqrt(2 * pi),
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda x: _swish(x, 1.702),
    "silu": _swish,
    "mish": _mish,
    "sigmoid": lambda x: sigmoid(x) * sigmoid(-x),
    "hard_sigmoid": between(-3.0, 3.0, 1 / 6),
    "hard_swish": lambda x: np.where(x <= -3, 0.0, np.where(x >= 3, 1.0, (2 * x + 3) / 6)),
    "hard_tanh": between(-1.0, 1.0),
    "tanh": lambda x: 1 - np.tanh(x) ** 2,
    "softplus": sigmoid,
    "softsign": lambda x: 1 / (1 + np.abs(x)) ** 2,
    "selu": lambda x: np.where(x > 0, 1.0507009873554805, activation("selu", x) + 1.7580993408473766),
}


def softmax(x: Floats, axis: int = -1) -> Floats:
    """Exponentials along an axis that sum to one."""
    with np.errstate(invalid="ignore"):
        shares = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(shares / shares.sum(axis, keepdims=True))


def softmax_backward(shares: Floats, gradient: Floats, axis: int = -1, log: bool = False) -> Floats:
    """The gradient before a softmax that gave these shares, or before its logarithm."""
    if log:
        return np.asarray(gradient - shares * gradient.sum(axis, keepdims=True))
    return np.asarray(shares * (gradient - (gradient * shares).sum(axis, keepdims=True)))
