"""The norm of every decoder here: by the root of the mean square."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .precision import wide
from .settings import DecoderConfig


class RMSNorm(nn.Module):
    """`x / rms(x) * weight`; Gemma's multiplies by 1 + weight, and rounds after that, not before."""

    def __init__(self, size: int, config: DecoderConfig) -> None:
        super().__init__()
        self.eps, self.offset = config.rms_norm_eps, config.norm_offset
        self.weight = nn.Parameter(torch.full((size,), 1.0 - self.offset))

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last dimension."""
        values = x.to(wide(x.dtype))
        normed = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.offset:
            return (normed * (self.offset + self.weight.to(normed.dtype))).to(x.dtype)
        return self.weight * normed.to(x.dtype)
