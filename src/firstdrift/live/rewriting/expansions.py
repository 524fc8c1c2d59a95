"""Operations of torch as the smaller ones they consist of, so that one of these can be changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Tensor = torch.Tensor


def _affine(tensor: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    tensor = tensor if weight is None else tensor * weight
    return tensor if bias is None else tensor + bias


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    axes = tuple(range(-len(shape), 0))
    centred = x - x.mean(axes, keepdim=True)
    variance = (centred * centred).mean(axes, keepdim=True)
    return _affine(centred * torch.rsqrt(variance + eps), weight, bias)


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    square = (x * x).mean(tuple(range(-len(shape), 0)), keepdim=True)
    return _affine(x * torch.rsqrt(square + eps), weight, None)


def _group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    parts = x.reshape(x.shape[0], groups, -1)
    centred = parts - parts.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    made = (centred * torch.rsqrt(variance + eps)).reshape(x.shape)
    return _affine(made, _along_channels(weight, x), _along_channels(bias, x))


def _batch_norm(
    x: Tensor, mean: Tensor | None, variance: Tensor | None, weight: Tensor | None = None, bias: Tensor | None = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    if training or mean is None or variance is None:
        axes = (0, *range(2, x.dim()))
        centre = x.mean(axes, keepdim=True)
        spread = ((x - centre) * (x - centre)).mean(axes, keepdim=True)
    else:
        centre, spread = _along_channels(mean, x), _along_channels(variance, x)
    made = (x - centre) * torch.rsqrt(spread + eps)
    return _affine(made, _along_channels(weight, x), _along_channels(bias, x))


def _along_channels(values: Any, x: Tensor) -> Any:
    return None if values is None else values.reshape(1, -1, *[1] * (x.dim() - 2))


def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    if enable_gqa:
        k, v = (one.repeat_interleave(q.shape[-3] // one.shape[-3], -3) for one in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(0)
        scores = scores.masked_fill(~seen, float("-inf"))
    if attn_mask is not None:
        masked = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if masked else scores + attn_mask
    return scores.softmax(-1) @ v


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _affine(x @ weight.mT, None, bias)


def _normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Tensor:
    return x / (x * x).sum(dim, keepdim=True).sqrt().clamp(eps) if p == 2 else x / x.norm(p, dim, True).clamp(eps)


def _cross_entropy(
    scores: Tensor, target: Tensor, weight: None = None, size_average: None = None, ignore_index: int = -100,
    reduce: None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    kept = target != ignore_index
    each = -scores.log_softmax(1).gather(1, torch.where(kept, target, 0).unsqueeze(1)).squeeze(1) * kept
    return each.sum() / kept.sum() if reduction == "mean" else each.sum()


EXPANSIONS: Mapping[str, Callable[..., Any]] = {
    "layer_norm": _layer_norm, "rms_norm": _rms_norm, "group_norm": _group_norm, "batch_norm": _batch_norm,
    "scaled_dot_product_attention": _attention, "linear": _linear, "normalize": _normalize,
    "silu": lambda x, inplace=False: x * torch.sigmoid(x), "cross_entropy": _cross_entropy,
}  # fmt: skip
