"""Rotary position embeddings: pairs of dimensions turned by angles that grow with the position."""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from .precision import wide
from .settings import Rope


def frequencies(
    rope: Rope, head_dim: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The angle that each pair of dimensions turns by from one position to the next."""
    size = int(head_dim * rope.partial)
    found = 1.0 / (rope.theta ** (torch.arange(0, size, 2, dtype=dtype, device=device) / size))
    if rope.divisors:
        return found / torch.tensor(rope.divisors, dtype=dtype, device=device)
    if rope.scaling == "linear":
        return found / rope.factor
    if rope.scaling == "llama3":
        return _llama3(found, rope)
    return found


def _llama3(found: Tensor, rope: Rope) -> Tensor:
    """Slow pairs are slowed down further, fast ones stay, and those between are blended."""
    turns = rope.original_positions * found / (2 * pi)  # within the original context
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    share = share.clamp(0, 1)
    return (1 - share) * found / rope.factor + share * found


def angles(rope: Rope, head_dim: int, start: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, `[count, rotated]`, of the positions from `start`, in the dtype and on the device of `like`.

    They are computed in float32 where the model's dtype is narrower: in bfloat16 there are only 256 whole positions.
    """
    dtype = wide(like.dtype)
    positions = torch.arange(start, start + count, device=like.device, dtype=dtype)
    turned = positions[:, None] * frequencies(rope, head_dim, like.device, dtype)
    turned = turned.repeat_interleave(2, -1) if rope.adjacent else torch.cat((turned, turned), -1)
    return turned.cos().to(like.dtype), turned.sin().to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool = False) -> Tensor:
    """Turn the first dimensions of every head, as many as there are angles; the others stay."""
    size = cos.shape[-1]
    turning, still = (x, None) if size == x.shape[-1] else (x[..., :size], x[..., size:])
    if adjacent:
        partner = torch.stack((-turning[..., 1::2], turning[..., ::2]), -1).flatten(-2)
    else:
        partner = torch.cat((-turning[..., size // 2 :], turning[..., : size // 2]), -1)
    turned = turning * cos + partner * sin
    return turned if still is None else torch.cat((turned, still), -1)
