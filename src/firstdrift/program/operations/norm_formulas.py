"""Norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .op_table import BY_SHAPE, REQUIRED, Tensors, Weights, entry, wide

_EPS = ("number", 1e-5, "epsilon", "variance_epsilon")


@entry("LayerNorm", "LayerNormalization", eps=_EPS, axes=("whole", BY_SHAPE))
def _layer_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Over the axes that the weight has, else over the last."""
    weight = w.get("weight")
    count = s.axes or (1 if weight is None else weight.dim())
    return functional.layer_norm(x[0], x[0].shape[-count:], weight, w.get("bias"), s.eps)


@entry(
    "RMSNorm",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    eps=("number", REQUIRED, *_EPS[2:]),
    offset=("number", 0.0),
)
def _rms_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """`x / rms(x) * (offset + weight)`; where an offset is added, rounding comes last."""
    return rms(x[0], w.get("weight"), s.eps, s.offset)


def rms(x: Tensor, weight: Tensor | None, eps: float, offset: float) -> Tensor:
    """`x / rms(x) * (offset + weight)`, computed in float32 at least."""
    values = x.to(wide(x.dtype))
    over = list(range(-(1 if weight is None else weight.dim()), 0))
    normed = values * torch.rsqrt((values * values).mean(over, keepdim=True) + eps)
    if weight is None:
        return normed.to(x.dtype)
    if offset:
        return (normed * (offset + weight.to(normed.dtype))).to(x.dtype)
    return weight * normed.to(x.dtype)


@entry("AddNorm", inputs=2, eps=("number", REQUIRED), offset=("number", 0.0))
def _add_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """A residual stream to which the RMS norm of the first tensor is added, as in Gemma 2."""
    return x[1] + rms(x[0], w["weight"], s.eps, s.offset)


@entry(
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNorm", "BatchNormalization", eps=_EPS,
    training=("flag", False, "training_mode"),
)  # fmt: skip
def _batch_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """By channel, with the running statistics; in training, or where there are none, with the batch's."""
    weight, bias = w.get("weight"), w.get("bias")
    if s.training or "running_mean" not in w:
        return functional.batch_norm(x[0], None, None, weight, bias, True, 0.0, s.eps)
    shape = [1, -1, *[1] * (x[0].dim() - 2)]
    made = (x[0] - w["running_mean"].view(shape)) * torch.rsqrt(w["running_var"] + s.eps).view(shape)
    made = made if weight is None else made * weight.view(shape)
    return made if bias is None else made + bias.view(shape)


@entry("GroupNorm", "GroupNormalization", num_groups=("whole", REQUIRED), eps=_EPS)
def _group_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.group_norm(x[0], s.num_groups, w.get("weight"), w.get("bias"), s.eps)


@entry("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "InstanceNormalization", eps=_EPS)
def _instance_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """By channel of each sample: a group norm with a group a channel."""
    return functional.group_norm(x[0], x[0].shape[1], w.get("weight"), w.get("bias"), s.eps)
