"""A keyword spotter: strided convolutions over mel bands, batch norm, pools, a GRU and dense layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ..case import NO_BUGS, Bugs, Planted
from .convolution import OwnBatchNorm, OwnConv1d
from .network import Network, class_loss
from .parts import OwnLinear
from .recurrent import OwnGRU

BANDS, FRAMES, CLASSES = 12, 47, 6


class Spotter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(BANDS, 16, 5, 2, 2)
        self.bn1 = nn.BatchNorm1d(16)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool1d(2)
        self.conv2 = nn.Conv1d(16, 24, 3, padding=1)
        self.bn2 = nn.BatchNorm1d(24)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.AvgPool1d(3, 2, padding=1, count_include_pad=False)
        self.gru = nn.GRU(24, 20, batch_first=True)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(6 * 20, 32)
        self.relu3 = nn.ReLU()
        self.fc2 = nn.Linear(32, CLASSES)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        x = self.pool1(self.relu1(self.bn1(self.conv1(mel))))
        x = self.pool2(self.relu2(self.bn2(self.conv2(x))))
        x, _ = self.gru(x.transpose(1, 2))
        return self.fc2(self.relu3(self.fc1(self.flatten(x))))


class OwnReLU(nn.Module):
    def __init__(self, bugs: Bugs = NO_BUGS) -> None:
        super().__init__()
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "leaky" in self.bugs:
            return torch.where(x > 0, x, self.bugs["leaky"] * x)
        x = torch.clamp(x, min=0)
        return x.clamp(max=self.bugs["relu-cap"]) if "relu-cap" in self.bugs else x


class OwnMaxPool(nn.Module):
    """The maximum over unfolded pairs."""

    def __init__(self, bugs: Bugs = NO_BUGS) -> None:
        super().__init__()
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "pool-mean" in self.bugs:
            return x.unfold(2, 2, 2).mean(-1)
        start = 1 if "pool-offset" in self.bugs else 0
        x = F.pad(x[..., start:], (0, start), value=-torch.inf)
        return x.unfold(2, 2, 2).max(-1).values


class OwnAvgPool(nn.Module):
    def __init__(self, bugs: Bugs = NO_BUGS) -> None:
        super().__init__()
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = F.pad(x, (1, 1)).unfold(2, 3, 2).sum(-1)
        if "count-pad" in self.bugs:
            return total / 3
        return total / F.pad(torch.ones_like(x[:1, :1]), (1, 1)).unfold(2, 3, 2).sum(-1)


class OwnFlatten(nn.Module):
    def __init__(self, bugs: Bugs = NO_BUGS) -> None:
        super().__init__()
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("btc->bct" if "flatten-order" in self.bugs else "btc->btc", x).reshape(len(x), -1)


class OwnSpotter(nn.Module):
    """Layer 0 is the first convolution with what belongs to it, layer 1 the second, layer 2 the rest."""

    def __init__(self, planted: Planted) -> None:
        super().__init__()
        first, second, rest = (planted.at(layer) for layer in range(3))
        self.conv1 = OwnConv1d(BANDS, 16, 5, 2, 2, first)
        self.bn1 = OwnBatchNorm(16, bugs=first)
        self.relu1 = OwnReLU(first)
        self.pool1 = OwnMaxPool(first)
        self.conv2 = OwnConv1d(16, 24, 3, padding=1, bugs=second)
        self.bn2 = OwnBatchNorm(24, bugs=second)
        self.relu2 = OwnReLU(second)
        self.pool2 = OwnAvgPool(second)
        self.gru = OwnGRU(24, 20, rest)
        self.flatten = OwnFlatten(rest)
        self.fc1 = OwnLinear(6 * 20, 32)
        self.relu3 = OwnReLU(rest)
        self.fc2 = OwnLinear(32, CLASSES, skip_bias="bias-dropped" in rest)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        x = self.pool1(self.relu1(self.bn1(self.conv1(mel))))
        x = self.pool2(self.relu2(self.bn2(self.conv2(x))))
        x, _ = self.gru(torch.einsum("bct->btc", x))
        return self.fc2(self.relu3(self.fc1(self.flatten(x))))


def inputs() -> tuple[Any, ...]:
    return (torch.randn(4, BANDS, FRAMES),)


NETWORK = Network(Spotter, {"own": OwnSpotter}, inputs, lambda: torch.randint(0, CLASSES, (4,)), class_loss)
