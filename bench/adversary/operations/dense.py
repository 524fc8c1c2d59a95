"""Linear layers, activations, sums and products, softmax, embeddings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from .op import Formula, Op, Wrong


def pieces(length, rng, most=5):
    """Random neighbouring slices that cover a length."""
    cuts = np.unique(rng.integers(1, length, rng.integers(1, most))) if length > 1 else []
    edges = [0, *map(int, cuts), length]
    return [slice(a, b) for a, b in pairwise(edges)]


def bias_of(op, w):
    return w["bias"] if op.bias and "bias" in w else None


def plus(y, bias):
    return y if bias is None else y + bias


def linear(op, xs, w, rng):
    return functional.linear(xs[0], w["weight"], bias_of(op, w))


def linear_permuted(op, xs, w, rng):
    order = torch.from_numpy(rng.permutation(op.wide_in))
    return functional.linear(xs[0][..., order], w["weight"][:, order], bias_of(op, w))


def linear_unfused(op, xs, w, rng):
    return plus(xs[0] @ w["weight"].t().contiguous(), bias_of(op, w))


def linear_chunked(op, xs, w, rng):
    total = 0
    for part in pieces(op.wide_in, rng):
        total = total + xs[0][..., part] @ w["weight"][:, part].t()
    return plus(total, bias_of(op, w))


def linear_columns(op, xs, w, rng):
    parts = pieces(op.wide_out, rng)
    return plus(torch.cat([functional.linear(xs[0], w["weight"][part]) for part in parts], -1), bias_of(op, w))


@dataclass(frozen=True)
class Linear(Op):
    wide_in: int = 8
    wide_out: int = 8
    bias: bool = True
    has_bias: bool = True
    formulas: ClassVar = (
        Formula("linear", linear),
        Formula("permuted", linear_permuted),
        Formula("unfused", linear_unfused),
        Formula("chunked", linear_chunked, wide=True),
        Formula("columns", linear_columns),
    )

    def shapes(self):
        return {"weight": (self.wide_out, self.wide_in)} | ({"bias": (self.wide_out,)} if self.has_bias else {})

    def module(self):
        return nn.Linear(self.wide_in, self.wide_out, bias=self.has_bias)

    def wrong(self, rng):
        return [Wrong("missing", "bias left out", replace(self, bias=False))] if self.has_bias else []


ACTIVATIONS = {
    "relu": (nn.ReLU, functional.relu, lambda x: torch.where(x > 0, x, torch.zeros_like(x))),
    "gelu": (nn.GELU, functional.gelu, lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5))),
    "tanh": (nn.Tanh, torch.tanh, lambda x: 2 * torch.sigmoid(2 * x) - 1),
    "silu": (nn.SiLU, functional.silu, lambda x: x * torch.sigmoid(x)),
    "sigmoid": (nn.Sigmoid, torch.sigmoid, lambda x: 1 / (1 + torch.exp(-x))),
    "softplus": (nn.Softplus, functional.softplus, lambda x: torch.clamp(x, min=0) + torch.log1p(torch.exp(-x.abs()))),
}
MISTAKEN = {
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": lambda x: functional.leaky_relu(x, 0.01),
    "silu": lambda x: x * torch.sigmoid(1.02 * x),
    "sigmoid": lambda x: torch.sigmoid(1.001 * x),
    "tanh": lambda x: torch.tanh(x).clamp(-0.95, 0.95),
    "softplus": lambda x: functional.softplus(x, threshold=2.0),
}


def activated(op, xs, w, rng):
    return MISTAKEN[op.which](xs[0]) if op.mistaken else ACTIVATIONS[op.which][1](xs[0])


def activated_unfused(op, xs, w, rng):
    return MISTAKEN[op.which](xs[0]) if op.mistaken else ACTIVATIONS[op.which][2](xs[0])


@dataclass(frozen=True)
class Activation(Op):
    which: str = "relu"
    mistaken: bool = False
    formulas: ClassVar = (Formula("fused", activated), Formula("unfused", activated_unfused, wide=True))

    def module(self):
        return ACTIVATIONS[self.which][0]()

    def wrong(self, rng):
        return [Wrong("constant", f"another {self.which}", replace(self, mistaken=True))]


@dataclass(frozen=True)
class Add(Op):
    second: float = 1.0
    formulas: ClassVar = (
        Formula("sum", lambda op, xs, w, rng: xs[0] + (xs[1] if op.second == 1 else op.second * xs[1])),
        Formula("turned", lambda op, xs, w, rng: (xs[1] if op.second == 1 else op.second * xs[1]) + xs[0]),
    )

    def wrong(self, rng):
        return [
            Wrong("missing", "second addend left out", replace(self, second=0.0)),
            Wrong("constant", "second addend scaled", replace(self, second=1 + 10 ** rng.uniform(-5, -1))),
        ]


@dataclass(frozen=True)
class Mul(Op):
    formulas: ClassVar = (
        Formula("product", lambda op, xs, w, rng: xs[0] * xs[1]),
        Formula("turned", lambda op, xs, w, rng: xs[1] * xs[0]),
    )


def softmax_unfused(op, xs, w, rng):
    x = xs[0] * op.scale if op.scale != 1 else xs[0]
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def softmax(op, xs, w, rng):
    return torch.softmax(xs[0] * op.scale if op.scale != 1 else xs[0], -1)


@dataclass(frozen=True)
class Softmax(Op):
    scale: float = 1.0
    formulas: ClassVar = (
        Formula("fused", softmax),
        Formula("unfused", softmax_unfused),
        Formula("logged", lambda op, xs, w, rng: torch.log_softmax(xs[0] * op.scale, -1).exp(), wide=True),
    )

    def module(self):
        return nn.Softmax(-1)

    def wrong(self, rng):
        return [Wrong("constant", "another temperature", replace(self, scale=1 + 10 ** rng.uniform(-5, -1)))]


@dataclass(frozen=True)
class Embedding(Op):
    rows: int = 16
    width: int = 8
    scale: float = 1.0
    formulas: ClassVar = (
        Formula("gather", lambda op, xs, w, rng: op.scaled(functional.embedding(xs[0], w["weight"]))),
        Formula("indexed", lambda op, xs, w, rng: op.scaled(w["weight"][xs[0]]), wide=True),
    )

    def scaled(self, x):
        return x if self.scale == 1 else x * self.scale

    def shapes(self):
        return {"weight": (self.rows, self.width)}

    def initial(self, name, shape, rng):
        return 0.5 * rng.standard_normal(shape)

    def module(self):
        return nn.Embedding(self.rows, self.width)

    def wrong(self, rng):
        return [Wrong("constant", "rows scaled", replace(self, scale=1 + 10 ** rng.uniform(-5, 0)))]
