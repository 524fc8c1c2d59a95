"""Activation functions by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_STEP = 32  # points of the table per unit
_LAST = 6  # beyond which erf is 1 in float64


def erf(x: Floats) -> Floats:
    """The error function, by its Taylor series around the nearest point of a table."""
    size = np.minimum(np.abs(np.nan_to_num(x, nan=0.0)), _LAST)
    nearest = np.rint(size * _STEP).astype(np.intp)
    distance = size - nearest / _STEP
    table = _erf_derivatives()
    total = table[-1][nearest]
    for row in table[-2::-1]:
        total = total * distance + row[nearest]
    return np.where(np.isnan(x), np.nan, np.copysign(total, x))


@cache
def _erf_derivatives() -> Floats:
    """Taylor coefficients of erf at the points of the table: by f'' = -2x f', differentiated again and again."""
    points = np.arange(_LAST * _STEP + 1) / _STEP
    rows = [np.array([math.erf(point) for point in points]), 2 / math.sqrt(math.pi) * np.exp(-(points**2))]
    for m in range(8):
        rows.append(-2 * (points * (m + 1) * rows[m + 1] + m * rows[m]) / ((m + 1) * (m + 2)))
    return np.stack(rows)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def softplus(x: Floats) -> Floats:
    """log(1 + exp(x)), without overflow."""
    return np.asarray(np.logaddexp(0.0, x))


def _gelu_tanh(x: Floats) -> Floats:
    return np.asarray(0.5 * x * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _selu(x: Floats) -> Floats:
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return np.asarray(scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0))))


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "relu_squared": lambda x: np.maximum(x, 0.0) ** 2,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
    "selu": _selu,
    "gelu": lambda x: 0.5 * x * (1.0 + erf(x / math.sqrt(2.0))),
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "silu": lambda x: x * sigmoid(x),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "sigmoid": sigmoid,
    "hard_sigmoid": lambda x: np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "hard_sigmoid_keras": lambda x: np.clip(0.2 * x + 0.5, 0.0, 1.0),
    "hard_swish": lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "hard_tanh": lambda x: np.clip(x, -1.0, 1.0),
    "tanh": lambda x: np.asarray(np.tanh(x)),
    "softplus": softplus,
    "softsign": lambda x: x / (1.0 + np.abs(x)),
}


def activation(name: str, x: Floats) -> Floats:
    """An activation function by name."""
    return ACTIVATIONS[name](x)
