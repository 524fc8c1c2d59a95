"""Norms over the last axis, over groups of channels, and with running statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from .op import Formula, Op, Wrong


def gain(op, w):
    return w["weight"] if op.gain else None


def other_eps(op, rng):
    factor = float(rng.choice([0.0, 0.01, 0.1, 10, 100, 1000]))
    return Wrong("constant", f"eps x {factor:g}", replace(op, eps=op.eps * factor), {"eps": op.eps * factor})


def layer_norm(op, xs, w, rng):
    return functional.layer_norm(xs[0], (op.width,), gain(op, w), w["bias"] if op.shift else None, op.eps)


def layer_norm_unfused(op, xs, w, rng):
    order = torch.from_numpy(rng.permutation(op.width))
    x = xs[0]
    centred = x - x[..., order].mean(-1, keepdim=True)
    y = centred * torch.rsqrt((centred[..., order] ** 2).mean(-1, keepdim=True) + op.eps)
    y = y * w["weight"] if op.gain else y
    return y + w["bias"] if op.shift else y


def layer_norm_divided(op, xs, w, rng):
    centred = xs[0] - xs[0].mean(-1, keepdim=True)
    y = centred / torch.sqrt((centred * centred).sum(-1, keepdim=True) / op.width + op.eps)
    y = y * w["weight"] if op.gain else y
    return y + w["bias"] if op.shift else y


@dataclass(frozen=True)
class LayerNorm(Op):
    width: int = 8
    eps: float = 1e-5
    gain: bool = True
    shift: bool = True
    formulas: ClassVar = (
        Formula("fused", layer_norm),
        Formula("unfused", layer_norm_unfused, wide=True),
        Formula("divided", layer_norm_divided, wide=True),
    )

    def shapes(self):
        return {"weight": (self.width,), "bias": (self.width,)}

    def module(self):
        return nn.LayerNorm(self.width, self.eps)

    def wrong(self, rng):
        return [
            other_eps(self, rng),
            Wrong("missing", "gain left out", replace(self, gain=False)),
            Wrong("missing", "bias left out", replace(self, shift=False)),
        ]


def rms_norm(op, xs, w, rng):
    return functional.rms_norm(xs[0], (op.width,), gain(op, w), op.eps)


def rms_norm_unfused(op, xs, w, rng):
    order = torch.from_numpy(rng.permutation(op.width))
    square = (xs[0][..., order] ** 2).mean(-1, keepdim=True)
    y = xs[0] * torch.rsqrt(square + op.eps)
    return y * w["weight"] if op.gain else y


@dataclass(frozen=True)
class RMSNorm(Op):
    width: int = 8
    eps: float = 1e-6
    gain: bool = True
    formulas: ClassVar = (Formula("fused", rms_norm), Formula("unfused", rms_norm_unfused, wide=True))

    def shapes(self):
        return {"weight": (self.width,)}

    def module(self):
        return nn.RMSNorm(self.width, self.eps)

    def wrong(self, rng):
        return [other_eps(self, rng), Wrong("missing", "gain left out", replace(self, gain=False))]


def group_norm(op, xs, w, rng):
    return functional.group_norm(xs[0], op.groups, gain(op, w), w["bias"] if op.shift else None, op.eps)


def group_norm_unfused(op, xs, w, rng):
    x = xs[0].reshape(xs[0].shape[0], op.groups, -1)
    centred = x - x.mean(-1, keepdim=True)
    y = (centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + op.eps)).reshape(xs[0].shape)
    ones = (-1,) + (1,) * (xs[0].dim() - 2)
    y = y * w["weight"].reshape(ones) if op.gain else y
    return y + w["bias"].reshape(ones) if op.shift else y


@dataclass(frozen=True)
class GroupNorm(Op):
    channels: int = 8
    groups: int = 2
    eps: float = 1e-5
    gain: bool = True
    shift: bool = True
    formulas: ClassVar = (Formula("fused", group_norm), Formula("unfused", group_norm_unfused, wide=True))

    def shapes(self):
        return {"weight": (self.channels,), "bias": (self.channels,)}

    def module(self):
        return nn.GroupNorm(self.groups, self.channels, self.eps)

    def wrong(self, rng):
        return [
            other_eps(self, rng),
            Wrong("constant", "twice the groups", replace(self, groups=2 * self.groups)),
            Wrong("missing", "bias left out", replace(self, shift=False)),
        ]


def batch_norm(op, xs, w, rng):
    return functional.batch_norm(
        xs[0], w["running_mean"], w["running_var"], gain(op, w), w["bias"] if op.shift else None, False, 0.0, op.eps
    )


def batch_norm_unfused(op, xs, w, rng):
    ones = (-1,) + (1,) * (xs[0].dim() - 2)
    scale = torch.rsqrt(w["running_var"] + op.eps)
    scale = scale * w["weight"] if op.gain else scale
    y = (xs[0] - w["running_mean"].reshape(ones)) * scale.reshape(ones)
    return y + w["bias"].reshape(ones) if op.shift else y


@dataclass(frozen=True)
class BatchNorm(Op):
    """With frozen statistics, as in evaluation."""

    channels: int = 8
    eps: float = 1e-5
    gain: bool = True
    shift: bool = True
    formulas: ClassVar = (Formula("fused", batch_norm), Formula("unfused", batch_norm_unfused, wide=True))

    def shapes(self):
        return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (self.channels,))

    def buffers(self):
        return frozenset({"running_mean", "running_var"})

    def initial(self, name, shape, rng):
        if name == "running_var":
            return rng.uniform(0.5, 2, shape)
        return super().initial(name, shape, rng)

    def module(self):
        return nn.BatchNorm2d(self.channels, self.eps)

    def wrong(self, rng):
        return [other_eps(self, rng), Wrong("missing", "gain left out", replace(self, gain=False))]
