"""How error spreads, as data: kinds of operations, how much they amplify, how many terms they sum.

An operation adds error of its own (the ladder says how much) and passes on, amplified, the error of its inputs. The
numbers here are measured: see the page on verdicts for where each comes from.
"""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np

from ...core.arrays import wide
from ...core.traces import Array

Shape = tuple[int, ...]

GAIN_MARGIN = 4.0  # between the gain measured for a kind of operation and the one that is still believed
PEERS = 3  # so many other sites of the same operation say more about its gain than any table
PEER_MARGIN = 3.0  # over the largest gain among them; clean runs stay below 1.8
LEAST_MARGIN = 1.5  # however small the gain of the peers is

# How much relative error passes through an operation: measured medians.
GAIN = {"linear": 1.0, "norm": 1.0, "move": 1.0, "activation": 1.45, "attention": 2.4, "add": 1.0, "unknown": 2.0}

_KINDS = {
    "linear": ("linear", "conv", "embedding", "matmul", "addmm", "bmm", "einsum", "lstm", "gru", "rnn"),
    "norm": ("norm",),
    "attention": ("attention", "attn", "sdpa"),
    "activation": ("relu", "gelu", "silu", "elu", "sigmoid", "tanh", "softmax", "softplus", "mish", "swish", "glu"),
    "add": ("add", "residual", "sub", "sum", "mean"),
    "move": ("pool", "flatten", "reshape", "view", "transpose", "permute", "dropout", "identity", "pad", "concat"),
}  # fmt: skip
_PRODUCTS = ("linear", "conv", "matmul", "addmm", "bmm", "einsum", "aten.mm")
ELEMENTWISE = ("activation", "add", "move")


@cache
def kind_of(op: str | None) -> str:
    """The kind of an operation, from the class name that a trace recorded."""
    lowered = (op or "").lower()
    for kind in ("attention", "norm", "activation", "move", "linear", "add"):
        if any(word in lowered for word in _KINDS[kind]):
            return kind
    return "unknown"


def is_product(op: str | None) -> bool:
    """Whether an operation is one product with weights or of two tensors: recurrent cells and lookups are not."""
    return kind_of(op) == "linear" and any(word in (op or "").lower() for word in _PRODUCTS)


def gain_limit(kind: str, peers: int, largest: float) -> float:
    """How much an operation may amplify the error of its inputs: by its kind, or by what its peers in this run show."""
    believed = GAIN_MARGIN * GAIN[kind]
    if peers < PEERS:
        return believed
    return min(believed, max(LEAST_MARGIN * GAIN[kind], PEER_MARGIN * largest))


def forward_length(kind: str, shape: Shape, inputs: list[Shape], weights: list[Shape]) -> int:
    """How many terms an output element sums; for an operation of unknown kind, the most that the shapes allow."""
    fan_in = max((prod(weight[1:]) for weight in weights if len(weight) > 1), default=0)
    if kind in ELEMENTWISE:
        last = shape[-1] if shape else 1
        pooled = max((prod(i) // max(1, prod(shape)) for i in inputs), default=1)
        return max(1, last if kind == "activation" else 1, pooled)  # softmax sums its last axis, a pool its window
    if kind == "linear" and fan_in:
        return fan_in
    return max([1, fan_in, per_sample(shape), *map(per_sample, inputs)])


def norm_length(op: str, shape: Shape, weights: list[Shape]) -> int:
    """How many numbers a norm's statistics sum: its weight's, or those of a row; those of a channel of the whole batch
    for norms of channels."""
    if is_of_channels(op):
        return max(1, prod(shape) // shape[1]) if len(shape) > 1 else max(1, prod(shape))
    return max([shape[-1] if shape else 1, *(prod(weight) for weight in weights)])


def is_of_channels(op: str) -> bool:
    """Whether a norm takes its statistics of channels, not of rows."""
    return any(word in op.lower() for word in ("batch", "group", "instance"))


def about_its_mean(array: Array, of_channels: bool) -> float:
    """The size of the numbers that a norm is given beside how far they are from their mean, at the worst place."""
    numbers = np.nan_to_num(wide(array), posinf=0.0, neginf=0.0)
    if numbers.ndim < 2:
        return 1.0
    rows = np.moveaxis(numbers, 1, 0).reshape(numbers.shape[1], -1) if of_channels else numbers
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.sqrt(np.mean(np.square(rows), -1)) / np.std(rows, -1)
    return float(np.nan_to_num(found, nan=1.0).max(initial=1.0))


def per_sample(shape: Shape) -> int:
    """Elements of one sample of a tensor whose first axis is the batch."""
    return prod(shape[1:]) if len(shape) > 1 else prod(shape)
