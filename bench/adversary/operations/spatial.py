"""Convolutions and pools."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from .dense import bias_of, pieces
from .op import Formula, Op, Wrong


def conv(op, xs, w, rng):
    return functional.conv2d(xs[0], w["weight"], bias_of(op, w), op.stride, op.padding)


def conv_last(op, xs, w, rng):
    x = xs[0].contiguous(memory_format=torch.channels_last)
    return functional.conv2d(x, w["weight"], bias_of(op, w), op.stride, op.padding).contiguous()


def conv_unfolded(op, xs, w, rng):
    x, weight = xs[0], w["weight"].flatten(1)
    columns = functional.unfold(x, op.size, padding=op.padding, stride=op.stride)
    order = torch.from_numpy(rng.permutation(weight.shape[1]))
    y = weight[:, order] @ columns[:, order]
    side = [(n + 2 * op.padding - op.size) // op.stride + 1 for n in x.shape[2:]]
    y = y.reshape(x.shape[0], op.out, *side)
    return y if bias_of(op, w) is None else y + w["bias"].reshape(-1, 1, 1)


def conv_by_channels(op, xs, w, rng):
    total = 0
    for part in pieces(op.into, rng):
        total = total + functional.conv2d(xs[0][:, part], w["weight"][:, part], None, op.stride, op.padding)
    return total if bias_of(op, w) is None else total + w["bias"].reshape(-1, 1, 1)


@dataclass(frozen=True)
class Conv(Op):
    into: int = 3
    out: int = 8
    size: int = 3
    stride: int = 1
    padding: int = 1
    bias: bool = True
    has_bias: bool = True
    formulas: ClassVar = (
        Formula("fused", conv),
        Formula("channels last", conv_last),
        Formula("unfolded", conv_unfolded, wide=True),
        Formula("by channels", conv_by_channels, wide=True),
    )

    def shapes(self):
        kernel = {"weight": (self.out, self.into, self.size, self.size)}
        return kernel | ({"bias": (self.out,)} if self.has_bias else {})

    def module(self):
        return nn.Conv2d(self.into, self.out, self.size, self.stride, self.padding, bias=self.has_bias)

    def wrong(self, rng):
        return [Wrong("missing", "bias left out", replace(self, bias=False))] if self.has_bias else []


@dataclass(frozen=True)
class MaxPool(Op):
    size: int = 2
    formulas: ClassVar = (Formula("fused", lambda op, xs, w, rng: functional.max_pool2d(xs[0], op.size)),)

    def module(self):
        return nn.MaxPool2d(self.size)


def avg_pool_reshaped(op, xs, w, rng):
    b, c, h, width = xs[0].shape
    s = op.size
    x = xs[0][:, :, : h // s * s, : width // s * s].reshape(b, c, h // s, s, width // s, s)
    return x.sum(5).sum(3) * (1 / op.divisor)


@dataclass(frozen=True)
class AvgPool(Op):
    size: int = 2
    divisor: float = 4.0
    formulas: ClassVar = (
        Formula("fused", lambda op, xs, w, rng: functional.avg_pool2d(xs[0], op.size) * (op.size**2 / op.divisor)),
        Formula("reshaped", avg_pool_reshaped, wide=True),
    )

    def module(self):
        return nn.AvgPool2d(self.size)

    def wrong(self, rng):
        return [Wrong("constant", "another divisor", replace(self, divisor=3.0))]


def average(op, xs, w, rng):
    return xs[0].mean((2, 3))


def average_in_turn(op, xs, w, rng):
    x = xs[0].sum(3).sum(2) if rng.random() < 0.5 else xs[0].sum(2).sum(2)
    return x / (xs[0].shape[2] * xs[0].shape[3])


@dataclass(frozen=True)
class GlobalAverage(Op):
    formulas: ClassVar = (Formula("mean", average), Formula("in turn", average_in_turn, wide=True))
