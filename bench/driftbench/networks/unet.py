"""A U-Net of a diffusion model: sinusoidal times, GroupNorm, SiLU, skips that are concatenated, upsampling."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ..case import Bugs, Planted
from .convolution import OwnConv2d
from .network import Network, wide
from .parts import OwnLinear

CHANNELS, GROUPS, TIMES, SIDE, EPS = 16, 4, 16, 16, 1e-5


def mean_square(found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The loss: how far the noise was guessed."""
    return F.mse_loss(wide(found), target.to(wide(found).dtype))


class TimeEmbedding(nn.Module):
    def forward(self, time: torch.Tensor) -> torch.Tensor:
        half = TIMES // 2
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float64) / half)
        angles = time[:, None].double() * frequencies
        return torch.cat((angles.cos(), angles.sin()), -1).to(time.dtype)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, inputs, EPS)
        self.act = nn.SiLU()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(TIMES, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv(self.act(self.norm(x))) + self.time(time)[:, :, None, None]
        return h + self.skip(x)


class UNet(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.time = TimeEmbedding()
        self.inlet = nn.Conv2d(4, CHANNELS, 3, padding=1)
        self.down1 = Block(CHANNELS, CHANNELS)
        self.pool1 = nn.Conv2d(CHANNELS, CHANNELS, 3, 2, 1)
        self.down2 = Block(CHANNELS, 2 * CHANNELS)
        self.pool2 = nn.Conv2d(2 * CHANNELS, 2 * CHANNELS, 3, 2, 1)
        self.middle = Block(2 * CHANNELS, 2 * CHANNELS)
        self.up = nn.Upsample(scale_factor=2, mode=mode, align_corners=None if mode == "nearest" else False)
        self.up2 = Block(4 * CHANNELS, CHANNELS)
        self.up1 = Block(2 * CHANNELS, CHANNELS)
        self.outlet = nn.Conv2d(CHANNELS, 4, 3, padding=1)

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        t = self.time(time)
        first = self.down1(self.inlet(image), t)
        second = self.down2(self.pool1(first), t)
        x = self.middle(self.pool2(second), t)
        x = self.up2(torch.cat((self.up(x), second), 1), t)
        x = self.up1(torch.cat((self.up(x), first), 1), t)
        return self.outlet(x)


class OwnTimeEmbedding(nn.Module):
    """Frequencies as powers."""

    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.bugs = bugs

    def forward(self, time: torch.Tensor) -> torch.Tensor:
        half = TIMES // 2
        last = half - 1 if "frequency-table" in self.bugs else half
        angles = torch.outer(time.double(), 1e4 ** (-torch.arange(half).double() / last))
        parts = (angles.cos(), angles.sin())
        return torch.cat(parts[::-1] if "sine-first" in self.bugs else parts, -1).to(time.dtype)


class OwnGroupNorm(nn.Module):
    def __init__(self, channels: int, bugs: Bugs) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups = self.bugs.get("groups", GROUPS)
        if "groups-interleaved" in self.bugs:
            h = wide(x).unflatten(1, (-1, groups)).transpose(1, 2)
        else:
            h = wide(x).unflatten(1, (groups, -1))
        mean = h.mean((2, 3, 4), keepdim=True)
        variance = (h * h).mean((2, 3, 4), keepdim=True) - mean * mean
        h = (h - mean) * torch.rsqrt(variance + self.bugs.get("norm-eps", EPS))
        if "groups-interleaved" in self.bugs:
            h = h.transpose(1, 2)
        return (h.flatten(1, 2) * self.weight[:, None, None] + self.bias[:, None, None]).to(x.dtype)


class OwnSiLU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (wide(x) / (1 + torch.exp(-wide(x)))).to(x.dtype)


class OwnBlock(nn.Module):
    def __init__(self, bugs: Bugs, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm = OwnGroupNorm(inputs, bugs)
        self.act = nn.ReLU() if "relu" in bugs else OwnSiLU()
        self.conv = OwnConv2d(inputs, outputs, 3, 1, 1)
        self.time = OwnLinear(TIMES, outputs)
        self.skip = OwnConv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.bugs = bugs

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        moment = self.time(time)[:, :, None, None]
        h = self.conv(self.act(self.norm(x)))
        if "time-unused" not in self.bugs:
            h = h + moment
        if "time-doubled" in self.bugs:
            h = h + moment
        return h if "missing-residual" in self.bugs else self.skip(x) + h


class OwnUpsample(nn.Module):
    """Nearest neighbours by repetition, bilinear by weights of neighbours."""

    def __init__(self, mode: str, bugs: Bugs) -> None:
        super().__init__()
        self.mode, self.corners = bugs.get("upsample", (mode, False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mode == "nearest":
            return x.repeat_interleave(2, 2).repeat_interleave(2, 3)
        from .vit import resizing

        rows, columns = (resizing(n, 2 * n, self.corners).to(x.dtype) for n in x.shape[2:])
        return torch.einsum("yp,xq,bcpq->bcyx", rows, columns, x)


class OwnUNet(nn.Module):
    """Layers 0 to 4 are down1, down2, middle, up2, up1."""

    def __init__(self, planted: Planted, mode: str) -> None:
        super().__init__()
        c, at = CHANNELS, planted.at
        self.bugs = planted.bugs
        self.time = OwnTimeEmbedding(planted.bugs)
        self.inlet = OwnConv2d(4, c, 3, 1, 1)
        self.down1 = OwnBlock(at(0), c, c)
        self.pool1 = OwnConv2d(c, c, 3, 2, 1, bugs=planted.bugs)
        self.down2 = OwnBlock(at(1), c, 2 * c)
        self.pool2 = OwnConv2d(2 * c, 2 * c, 3, 2, 1, bugs=planted.bugs)
        self.middle = OwnBlock(at(2), 2 * c, 2 * c)
        self.up = OwnUpsample(mode, planted.bugs)
        self.up2 = OwnBlock(at(3), 4 * c, c)
        self.up1 = OwnBlock(at(4), 2 * c, c)
        self.outlet = OwnConv2d(c, 4, 3, 1, 1)

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        t = self.time(time + 1 if "time-shift" in self.bugs else time)
        inlet = self.inlet(image)
        first = self.down1(inlet, t)
        second = self.down2(self.pool1(first), t)
        x = self.middle(self.pool2(second), t)
        x = self.up2(self.joined(self.up(x), second, "concat-order-2"), t)
        skip = inlet if "skip-source" in self.bugs else first
        x = self.up1(self.joined(self.up(x), skip, "concat-order-1"), t)
        return self.outlet(x)

    def joined(self, x: torch.Tensor, skip: torch.Tensor, bug: str) -> torch.Tensor:
        whole = x.new_empty(len(x), x.shape[1] + skip.shape[1], *x.shape[2:])
        parts = (skip, x) if bug in self.bugs else (x, skip)
        whole[:, : parts[0].shape[1]], whole[:, parts[0].shape[1] :] = parts
        return whole


def inputs() -> tuple[Any, ...]:
    return torch.randn(2, 4, SIDE, SIDE), torch.tensor([17.0, 432.0])


NETWORK = Network(
    UNet, {"own": OwnUNet}, inputs, lambda: torch.randn(2, 4, SIDE, SIDE), mean_square, {"mode": "nearest"}
)
