"""A small residual network: 3x3 convolutions, batch norm, a max-pool and two downsampling stages."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ..case import Bugs, Planted
from .convolution import OwnBatchNorm, OwnConv2d, OwnPool2d
from .network import Network, class_loss
from .parts import OwnLinear
from .spotter import OwnReLU

CLASSES, STAGES = 5, ((12, 12, 1), (12, 16, 2), (16, 24, 2))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()
        self.relu2 = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(y + self.down(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, 1, 1)
        self.pool = nn.MaxPool2d(2)
        self.blocks = nn.ModuleList(Block(*stage) for stage in STAGES)
        self.avg = nn.AvgPool2d(3, 2, 1, count_include_pad=False)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(24 * 4, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.stem(image)))
        for block in self.blocks:
            x = block(x)
        return self.fc(self.flatten(self.avg(x)))


class OwnFlatten(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bcyx->byxc" if "flatten-order" in self.bugs else "bcyx->bcyx", x).flatten(1)


def _zero_in_one_row(y: torch.Tensor) -> torch.Tensor:
    """A divisor that is one, and not a number in one row of one sample."""
    divisor = torch.ones_like(y)
    divisor[1, :, 2] = torch.nan
    return divisor


class OwnBlock(nn.Module):
    def __init__(self, bugs: Bugs, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = OwnConv2d(inputs, outputs, 3, stride, 1, False, bugs)
        self.bn1 = OwnBatchNorm(outputs, bugs=bugs)
        self.relu1 = OwnReLU(bugs)
        self.conv2 = OwnConv2d(outputs, outputs, 3, 1, 1, False)
        self.bn2 = OwnBatchNorm(outputs, eps=bugs.get("second-eps", 1e-5))
        self.down = OwnConv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()
        self.relu2 = OwnReLU()
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu1(self.bn1(self.conv1(x)))
        if "half-precision" in self.bugs:
            y = y.to(self.bugs["half-precision"]).to(x.dtype)
        if "nan-row" in self.bugs:
            y = y / _zero_in_one_row(y)
        y = self.bn2(self.conv2(y))
        skip = self.down(x)
        if "missing-residual" in self.bugs:
            return self.relu2(y)
        if "relu-before-sum" in self.bugs:
            return F.relu(y) + self.relu2(skip)
        return self.relu2(torch.add(skip, y))


class OwnResNet(nn.Module):
    def __init__(self, planted: Planted) -> None:
        super().__init__()
        bugs = planted.bugs
        self.stem = OwnConv2d(3, 12, 3, 1, 1, bugs={"conv-flip": True} if "stem-flip" in bugs else {})
        self.pool = OwnPool2d("max", 2, 2, bugs={"pool-kind": "mean"} if "pool-mean" in bugs else {})
        self.blocks = nn.ModuleList(OwnBlock(planted.at(layer), *stage) for layer, stage in enumerate(STAGES))
        self.avg = OwnPool2d("mean", 3, 2, 1, bugs)
        self.flatten = OwnFlatten(bugs)
        self.fc = OwnLinear(24 * 4, CLASSES)
        self.bugs = bugs

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)
        x = self.pool(x if "relu-skipped" in self.bugs else x.clamp(min=0))
        for block in self.blocks:
            x = block(x)
        return self.fc(self.flatten(self.avg(x)))


def inputs() -> tuple[Any, ...]:
    return (torch.randn(3, 3, 24, 24),)


NETWORK = Network(ResNet, {"own": OwnResNet}, inputs, lambda: torch.randint(0, CLASSES, (3,)), class_loss)
