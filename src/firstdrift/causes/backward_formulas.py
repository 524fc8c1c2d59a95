"""The backward passes of common operations in float64, right and as they are often mistaken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..strict_json import Json
from ..traces import Array
from .agreement import Floats, floats


@dataclass(frozen=True, slots=True)
class Backward:
    """What a backward pass starts from: the gradient of the output, the input, and the module."""

    gradient: Floats
    value: Floats
    parameters: Mapping[str, Array]
    attrs: Mapping[str, Json]

    def weight(self) -> Floats | None:
        """The module's weight."""
        return floats(self.parameters["weight"]) if "weight" in self.parameters else None


Formula = Callable[[Backward], Floats]
Mistakes = dict[str, Formula]


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)), np.float64)


def _normal(x: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi), np.float64)


def _erf(x: Floats) -> Floats:
    """The error function to 1e-15: its series near zero, the continued fraction of its complement further out."""
    near = np.where(np.abs(x) < 2.5, x, 0.0)
    term, total = near.copy(), near.copy()
    for n in range(1, 60):
        term = term * (-near * near) / n
        total = total + term / (2 * n + 1)
    far = np.maximum(np.abs(x), 2.5)
    fraction = np.zeros_like(far)
    for n in range(60, 0, -1):
        fraction = (n / 2) / (far + fraction)
    complement = np.exp(-far * far) / np.sqrt(np.pi) / (far + fraction)
    return np.asarray(np.where(np.abs(x) < 2.5, 2 / np.sqrt(np.pi) * total, np.sign(x) * (1 - complement)), np.float64)


def _gelu_slope(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + _erf(x / np.sqrt(2))) + x * _normal(x), np.float64)


def _gelu_tanh_slope(x: Floats) -> Floats:
    c = np.sqrt(2 / np.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    return np.asarray(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x), np.float64)


def _quick_gelu_slope(x: Floats) -> Floats:
    s = _sigmoid(1.702 * x)
    return np.asarray(s + 1.702 * x * s * (1 - s), np.float64)


def _silu_slope(x: Floats) -> Floats:
    s = _sigmoid(x)
    return np.asarray(s * (1 + x * (1 - s)), np.float64)


def _slope_of(function: Callable[[Floats], Floats]) -> Formula:
    return lambda b: b.gradient * function(b.value)


SLOPES: dict[str, Callable[[Floats], Floats]] = {
    "GELU": _gelu_slope,
    "tanh GELU": _gelu_tanh_slope,
    "quick GELU": _quick_gelu_slope,
    "SiLU": _silu_slope,
    "ReLU": lambda x: np.asarray(x > 0, np.float64),
    "sigmoid": lambda x: _sigmoid(x) * (1 - _sigmoid(x)),
    "tanh": lambda x: np.asarray(1 - np.tanh(x) ** 2, np.float64),
    "softplus": _sigmoid,
    "ReLU6": lambda x: np.asarray((x > 0) & (x < 6), np.float64),
}
MISTAKEN_SLOPES: dict[str, Callable[[Floats], Floats]] = {
    "lets the gradient through at zero": lambda x: np.asarray(x >= 0, np.float64),
    "lets the gradient through where the input is negative": lambda x: np.asarray(x < 0, np.float64),
    "forgets the derivative": np.ones_like,
    "takes x (1 - x) of the input, not of the output": lambda x: x * (1 - x),
    "takes 1 - x * x of the input, not of the output": lambda x: 1 - x * x,
    "takes the sigmoid for the derivative": _sigmoid,
}


def _leaky_slope(b: Backward) -> float:
    slope = b.attrs.get("negative_slope", 0.01)
    return float(slope) if isinstance(slope, int | float) else 0.01


def _softmax(b: Backward) -> Floats:
    shifted = np.exp(b.value - b.value.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True), np.float64)


def _softmax_backward(b: Backward) -> Floats:
    p = _softmax(b)
    return np.asarray(p * (b.gradient - (b.gradient * p).sum(-1, keepdims=True)), np.float64)


def _norm_backward(
    b: Backward, centred: bool, mean: bool = True, along: bool = True, weight: bool = True, scale: bool = True
) -> Floats:
    """LayerNorm's and RMSNorm's backward, with terms left out; axes as many as the weight has."""
    own = b.weight()
    axes = tuple(range(-(own.ndim if own is not None else 1), 0))
    eps = b.attrs.get("eps", b.attrs.get("variance_epsilon", 1e-5))
    x = b.value - b.value.mean(axes, keepdims=True) if centred else b.value
    rate = 1 / np.sqrt((x * x).mean(axes, keepdims=True) + (float(eps) if isinstance(eps, int | float) else 1e-5))
    g = b.gradient * own if own is not None and weight else b.gradient
    made = g.copy()
    if centred and mean:
        made = made - g.mean(axes, keepdims=True)
    if along:
        made = made - x * rate * (g * x * rate).mean(axes, keepdims=True)
    return np.asarray(made * rate if scale else made, np.float64)


def _norm_mistakes(centred: bool) -> Mistakes:
    mistakes: Mistakes = {
        "lacks the term along the normalized input": lambda b: _norm_backward(b, centred, along=False),
        "forgets its own weight": lambda b: _norm_backward(b, centred, weight=False),
        "forgets to divide by the standard deviation": lambda b: _norm_backward(b, centred, scale=False),
    }
    if centred:
        mistakes |= {
            "lacks the mean of the gradient": lambda b: _norm_backward(b, centred, mean=False),
            "takes mean and variance for constants": lambda b: _norm_backward(b, centred, mean=False, along=False),
        }
    return mistakes


def _linear_backward(b: Backward) -> Floats:
    weight = b.weight()
    assert weight is not None
    return np.asarray(b.gradient @ weight, np.float64)


def _linear_transposed(b: Backward) -> Floats:
    weight = b.weight()
    assert weight is not None
    return np.asarray(b.gradient @ weight.T, np.float64)


def known(op: str, backward: Backward) -> Iterator[tuple[str, Formula, Mistakes]]:
    """The right formulas that an operation's backward may have, by name, each with its mistakes."""
    name, weight = op.lower(), backward.weight()
    if weight is None or weight.shape == (1,):
        if "softmax" in name and "log" not in name:
            yield "the softmax", _softmax_backward, SOFTMAX_MISTAKES
        if "leaky" in name:
            slope = _leaky_slope(backward)
            others = {"forgets the slope below zero": _slope_of(SLOPES["ReLU"])}
            yield "the leaky ReLU", _slope_of(lambda x: np.where(x > 0, 1.0, slope)), others | _mistaken("ReLU")
        for activation, function in SLOPES.items():
            yield f"the {activation}", _slope_of(function), _mistaken(activation)
    if "norm" in name and "batch" not in name and "group" not in name and "instance" not in name:
        yield "the LayerNorm", lambda b: _norm_backward(b, True), _norm_mistakes(True)
        yield "the RMSNorm", lambda b: _norm_backward(b, False), _norm_mistakes(False)
    if weight is not None and weight.ndim == 2 and backward.gradient.shape[-1:] == weight.shape[:1]:
        square = weight.shape[0] == weight.shape[1]
        yield "the linear layer", _linear_backward, {TRANSPOSED: _linear_transposed} if square else {}


TRANSPOSED = "multiplies by the weight where its transpose belongs, or the other way round"
SOFTMAX_MISTAKES: Mistakes = {
    "lacks the sum over the row": lambda b: b.gradient * _softmax(b),
    "takes the diagonal of its derivative alone": lambda b: b.gradient * _softmax(b) * (1 - _softmax(b)),
    "forgets the derivative": lambda b: b.gradient.copy(),
}


def _mistaken(activation: str) -> Mistakes:
    mistakes = {name: _slope_of(function) for name, function in MISTAKEN_SLOPES.items()}
    for other, function in SLOPES.items():
        if other != activation:
            mistakes[f"takes the derivative of the {other}"] = _slope_of(function)
    return mistakes
