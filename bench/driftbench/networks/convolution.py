"""Convolutions, batch norms and pools by their formulas, for the candidates with images and audio."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ..case import NO_BUGS, Bugs
from .network import wide


class OwnConv2d(nn.Module):
    """A convolution as a sum over the places of its kernel, one einsum each. `padding` is (before, after)."""

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0, bias: bool = True,
        bugs: Bugs = NO_BUGS
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, size, size))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.stride, self.padding = stride, bugs.get("padding", (padding, padding))
        self.mode = bugs.get("padding-mode", "constant")
        self.flip = "conv-flip" in bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, after = self.padding
        x = F.pad(x, (before, after, before, after), self.mode)
        kernel = self.weight.flip(2, 3) if self.flip else self.weight
        size, stride = kernel.shape[-1], self.stride
        rows, columns = ((extent - size) // stride + 1 for extent in x.shape[2:])
        y = sum(
            torch.einsum("bchw,oc->bohw", x[:, :, i : i + rows * stride : stride, j : j + columns * stride : stride],
                         kernel[:, :, i, j])
            for i in range(size) for j in range(size)
        )  # fmt: skip
        assert isinstance(y, torch.Tensor)
        return y if self.bias is None else y + self.bias[:, None, None]


class OwnConv1d(nn.Module):
    """A convolution as one matrix product with unfolded windows."""

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0, bugs: Bugs = NO_BUGS
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, size))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.stride, self.padding = stride, bugs.get("padding", (padding, padding))
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel = self.weight.flip(2) if "conv-flip" in self.bugs else self.weight
        windows = F.pad(x, self.padding, self.bugs.get("padding-mode", "constant")).unfold(
            2, kernel.shape[2], self.stride
        )
        y = torch.einsum("bctk,ock->bot", windows, kernel)
        return y if "bias-dropped" in self.bugs else y + self.bias[:, None]


class OwnBatchNorm(nn.Module):
    """Batch norm as one multiplication and one sum per channel; the moments in training by hand."""

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1, bugs: Bugs = NO_BUGS) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))
        self.eps, self.momentum = bugs.get("bn-eps", eps), bugs.get("bn-momentum", momentum)
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = wide(x)
        shape = (1, -1) + (1,) * (x.ndim - 2)
        mean, variance = wide(self.running_mean), wide(self.running_var)
        if self.training or "bn-batch-statistics" in self.bugs:
            axes = [axis for axis in range(x.ndim) if axis != 1]
            mean = h.mean(axes)
            variance = (h - mean.view(shape)).square().mean(axes)
            if self.training:
                self.update(mean, variance, h.numel() // h.shape[1])
        root = variance.sqrt() + self.eps if "bn-eps-placement" in self.bugs else (variance + self.eps).sqrt()
        factor = wide(self.weight) / root
        shift = wide(self.bias) - mean * factor
        return torch.addcmul(shift.view(shape), h, factor.view(shape)).to(x.dtype)

    @torch.no_grad()
    def update(self, mean: torch.Tensor, variance: torch.Tensor, count: int) -> None:
        """The running moments; the variance without bias."""
        if "bn-frozen" in self.bugs:
            return
        if "bn-biased" not in self.bugs:
            variance = variance * count / (count - 1)
        self.running_mean += self.momentum * (mean.to(self.running_mean.dtype) - self.running_mean)
        self.running_var += self.momentum * (variance.to(self.running_var.dtype) - self.running_var)
        self.num_batches_tracked += 1


class OwnPool2d(nn.Module):
    """A pool over unfolded windows. `kind` is max or mean."""

    def __init__(self, kind: str, size: int, stride: int, padding: int = 0, bugs: Bugs = NO_BUGS) -> None:
        super().__init__()
        self.kind, self.size, self.stride, self.padding = bugs.get("pool-kind", kind), size, stride, padding
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fill = -torch.inf if self.kind == "max" else 0.0
        windows = self.windows(x, fill)
        if self.kind == "max":
            return windows.flatten(-2).max(-1).values
        total = windows.sum((-2, -1))
        if "count-pad" in self.bugs:
            return total / self.size**2
        return total / self.windows(torch.ones_like(x[:1, :1]), 0.0).sum((-2, -1))

    def windows(self, x: torch.Tensor, fill: float) -> torch.Tensor:
        padding = self.padding
        x = F.pad(x, (padding, padding, padding, padding), value=fill)
        return x.unfold(2, self.size, self.stride).unfold(3, self.size, self.stride)
