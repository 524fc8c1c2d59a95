"""The backward passes of activations and softmax, right and as they are often mistaken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import pi, sqrt

import numpy as np

from ..agreement import Floats
from ..formulas import ACTIVATIONS, SLOPES, activation, erf, softmax, softmax_backward
from .backward_formulas import Backward, Formula, Known, Mistakes

NAMES = {
    "relu": "ReLU", "relu6": "ReLU6", "relu_squared": "squared ReLU", "leaky_relu": "leaky ReLU", "elu": "ELU",
    "gelu": "GELU", "gelu_tanh": "tanh GELU", "quick_gelu": "quick GELU", "silu": "SiLU", "mish": "Mish",
    "hard_sigmoid": "hard sigmoid", "hard_swish": "hard swish", "hard_tanh": "hard tanh", "selu": "SELU",
}  # fmt: skip
ALIASES = {"swish": "silu", "relusquared": "relu_squared", "newgelu": "gelu_tanh", "fastgelu": "gelu_tanh"}


def known_activations(op: str, b: Backward) -> Iterator[Known]:
    """Functions of single elements and softmax, where a module has no weight; that of its name first."""
    weight = b.parameter("weight")
    if b.gradient.shape != b.value.shape or (weight is not None and weight.shape != (1,)):
        return
    name = op.lower()
    if "softmax" in name:
        log, rows = "log" in name, _axis(b) not in (0, -b.value.ndim)
        yield Known(
            "the softmax", partial(_softmax_backward, log=log), LOG_SOFTMAX if log else SOFTMAX, True, samples=rows
        )
        return
    if weight is not None:
        mistakes = {FORGOTTEN: _slope_of("relu")} | _mistaken("relu")
        yield Known("the PReLU", lambda b: b.gradient * np.where(b.value > 0, 1.0, weight), mistakes, True, True)
        return
    if "leaky" in name:
        yield Known("the leaky ReLU", _leaky, {FORGOTTEN: _slope_of("relu")} | _mistaken("relu"), True, True)
    meant = activations_of(op)
    for activation_name in [*meant, *(one for one in SLOPES if one not in meant)]:
        called = f"the {NAMES.get(activation_name, activation_name)}"
        yield Known(called, _slope_of(activation_name), _mistaken(activation_name), activation_name in meant, True)


def activations_of(op: str) -> list[str]:
    """The activations that the name of a module may mean."""
    plain = op.lower().replace("_", "").removesuffix(" backward").removesuffix("activation").removesuffix("function")
    for ending, name in ALIASES.items():
        if plain.endswith(ending):
            return [name]
    fitting = [name for name in SLOPES if plain.endswith(name.replace("_", ""))]
    longest = max((len(name) for name in fitting), default=0)
    found = [name for name in fitting if len(name) == longest]
    return [*found, "gelu_tanh"] if found == ["gelu"] else found


FORGOTTEN = "forgets the slope below zero"


def _slope_of(name: str) -> Formula:
    return lambda b: b.gradient * SLOPES[name](b.value)


def _leaky(b: Backward) -> Floats:
    slope = b.number("negative_slope", "slope", default=0.01)
    return np.asarray(b.gradient * np.where(b.value > 0, 1.0, slope))


def _mistaken(name: str) -> dict[str, Formula]:
    """What is taken for an activation's derivative."""
    value, slope = ACTIVATIONS[name], SLOPES[name]
    mistakes: dict[str, Formula] = {
        "lets the gradient through at zero": lambda b: b.gradient * (b.value >= 0),
        "lets the gradient through where the input is negative": lambda b: b.gradient * (b.value < 0),
        "masks by the sign of the gradient, not of the input": lambda b: b.gradient * (b.gradient > 0),
        "masks by the signs of both the input and the gradient": (
            lambda b: b.gradient * ((b.gradient > 0) & (b.value > 0))
        ),
        "forgets the derivative": lambda b: b.gradient.copy(),
        "gives the derivative, without the gradient": lambda b: slope(b.value),
        "multiplies by the derivative twice": lambda b: b.gradient * slope(b.value) ** 2,
        "multiplies by the output instead of the derivative": lambda b: b.gradient * value(b.value),
        "takes the derivative at the output": lambda b: b.gradient * slope(value(b.value)),
        "takes x (1 - x) of the input, not of the output": lambda b: b.gradient * b.value * (1 - b.value),
        "takes 1 - x * x of the input, not of the output": lambda b: b.gradient * (1 - b.value * b.value),
        "takes the sigmoid for the derivative": lambda b: b.gradient * activation("sigmoid", b.value),
    }
    for part, function in PARTS.get(name, {}).items():
        mistakes[f"takes {part} for the derivative"] = _times_slope(function)
    for other in SLOPES:
        if other != name:
            mistakes[f"takes the derivative of the {NAMES.get(other, other)}"] = _slope_of(other)
    return mistakes


def _times_slope(function: Callable[[Floats], Floats]) -> Formula:
    return lambda b: b.gradient * function(b.value)


def _cdf(x: Floats) -> Floats:
    return 0.5 * (1 + erf(x / sqrt(2)))


def _tanh_share(x: Floats) -> Floats:
    return 0.5 * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))


# Pieces of derivatives that are taken for the whole, by what they are called in formulas.
PARTS: Mapping[str, Mapping[str, Callable[[Floats], Floats]]] = {
    "silu": {
        "s (1 + x)": lambda x: _sigmoid(x) * (1 + x), "s (1 - s)": lambda x: _sigmoid(x) * _sigmoid(-x),
        "x s (1 - s)": lambda x: x * _sigmoid(x) * _sigmoid(-x),
        "s + x (1 - s)": lambda x: _sigmoid(x) + x * _sigmoid(-x),
    },
    "gelu": {
        "the first term": _cdf, "the second term": lambda x: SLOPES["gelu"](x) - _cdf(x),
        "the terms without x": lambda x: _cdf(x) + np.exp(-0.5 * x * x) / sqrt(2 * pi),
    },
    "gelu_tanh": {
        "the first term": _tanh_share, "the second term": lambda x: SLOPES["gelu_tanh"](x) - _tanh_share(x),
    },
    "sigmoid": {"1 - s": lambda x: _sigmoid(-x)},
    "tanh": {"1 - t": lambda x: 1 - np.tanh(x), "t": np.tanh, "t * t": lambda x: np.tanh(x) ** 2},
    "softplus": {"1 - s": lambda x: _sigmoid(-x)},
}  # fmt: skip


def _sigmoid(x: Floats) -> Floats:
    return activation("sigmoid", x)


def _shares(b: Backward) -> Floats:
    return softmax(b.value, _axis(b))


def _axis(b: Backward) -> int:
    return int(b.number("dim", "axis", default=-1))


def _softmax_backward(b: Backward, log: bool = False) -> Floats:
    return softmax_backward(_shares(b), b.gradient, _axis(b), log)


SOFTMAX: Mistakes = {
    "lacks the sum over the row": lambda b: b.gradient * _shares(b),
    "takes the diagonal of its derivative alone": lambda b: b.gradient * _shares(b) * (1 - _shares(b)),
    "forgets the derivative": lambda b: b.gradient.copy(),
    "adds the sum over the row instead of taking it off": (
        lambda b: _shares(b) * (b.gradient + (b.gradient * _shares(b)).sum(_axis(b), keepdims=True))
    ),
    "does not weigh the sum over the row": (
        lambda b: _shares(b) * (b.gradient - b.gradient.sum(_axis(b), keepdims=True))
    ),
    "takes the mean over the row, not the weighed sum": (
        lambda b: _shares(b) * (b.gradient - b.gradient.mean(_axis(b), keepdims=True))
    ),
    "is that of the log-softmax": lambda b: _softmax_backward(b, log=True),
}
LOG_SOFTMAX: Mistakes = {
    "lacks the sum over the row": lambda b: b.gradient.copy(),
    "does not multiply by the sum over the row": lambda b: b.gradient - _shares(b),
    "takes the mean over the row, not the sum": (
        lambda b: b.gradient - _shares(b) * b.gradient.mean(_axis(b), keepdims=True)
    ),
    "is that of the softmax": _softmax_backward,
}
