"""Two linear layers in int8 with zero points, between float ones, as a microcontroller runs them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..case import Bugs, Planted
from .network import Network, class_loss
from .parts import OwnLinear

WIDTH, HIDDEN, CLASSES = 24, 32, 6
SCALE, ZERO = 1 / 16, 3


class Quantise(nn.Module):
    """Floats to int8: round to even, then clamp."""

    def __init__(self, scale: float = SCALE, zero: int = ZERO) -> None:
        super().__init__()
        self.scale, self.zero = scale, zero

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.round(x / self.scale) + self.zero).clamp(-128, 127).to(torch.int8)


class QuantisedLinear(nn.Module):
    """int8 in, int32 sums, float out; weights are whole numbers with one scale a channel."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("levels", torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8))
        self.register_buffer("scales", torch.empty(outputs).uniform_(0.5, 1.5) / 300)
        self.zero = ZERO

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sums = (x.int() - self.zero) @ self.levels.int().T
        return sums * self.scales * SCALE


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(WIDTH, WIDTH)
        self.quant1 = Quantise()
        self.fc1 = QuantisedLinear(WIDTH, HIDDEN)
        self.relu = nn.ReLU()
        self.quant2 = Quantise()
        self.fc2 = QuantisedLinear(HIDDEN, WIDTH)
        self.outlet = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc1(self.quant1(self.inlet(x)))
        return self.outlet(self.fc2(self.quant2(self.relu(x))))


class OwnQuantise(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * (1 / self.bugs.get("scale", SCALE))
        if "ties-away" in self.bugs:
            y = torch.sign(y) * torch.floor(y.abs() + 0.5)
        elif "truncated" in self.bugs:
            y = torch.trunc(y)
        elif "rounded-twice" in self.bugs:
            y = torch.round(torch.round(y * 4) / 4)
        else:
            y = torch.round(y)
        y = y + self.bugs.get("zero", ZERO)
        if "wrapped" in self.bugs:
            return ((y + 128) % 256 - 128).to(torch.int8)
        return y.clamp(-128, self.bugs.get("top", 127)).to(torch.int8)


class OwnQuantisedLinear(nn.Module):
    """The zero point taken out of the sums in advance, as engines do."""

    def __init__(self, inputs: int, outputs: int, bugs: Bugs) -> None:
        super().__init__()
        self.register_buffer("levels", torch.zeros(outputs, inputs, dtype=torch.int8))
        self.register_buffer("scales", torch.zeros(outputs))
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = self.levels.long()
        offset = levels.sum(1) * self.bugs.get("linear-zero", ZERO)
        scales = self.scales.mean() if "one-scale" in self.bugs else self.scales
        return ((x.long() @ levels.T) - offset) * (scales * SCALE)


class OwnQuantised(nn.Module):
    """Layer 1 is fc1 with what feeds it, layer 2 is fc2."""

    def __init__(self, planted: Planted) -> None:
        super().__init__()
        first, second = planted.at(1), planted.at(2)
        self.inlet = OwnLinear(WIDTH, WIDTH)
        self.quant1 = OwnQuantise(first)
        self.fc1 = OwnQuantisedLinear(WIDTH, HIDDEN, first)
        self.relu = nn.ReLU()
        self.quant2 = OwnQuantise(second)
        self.fc2 = OwnQuantisedLinear(HIDDEN, WIDTH, second)
        self.outlet = OwnLinear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc1(self.quant1(self.inlet(x)))
        return self.outlet(self.fc2(self.quant2(self.relu(x))))


def inputs() -> tuple[Any, ...]:
    return (torch.randn(8, WIDTH),)


NETWORK = Network(Quantised, {"own": OwnQuantised}, inputs, lambda: torch.randint(0, CLASSES, (8,)), class_loss)
