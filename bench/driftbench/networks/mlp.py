"""A small network to train: embedding, LayerNorm, ReLU, a softmax gate, SiLU, a residual. The candidate has backward
passes of its own for every operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..case import Bugs, Planted
from . import handmade as made
from .network import Network, sequence_loss
from .parts import NudgedLinear, SampleLinear, SplitLinear, TransposedLinear

WORDS, WIDTH, CLASSES, EPS = 24, 32, 7, 1e-5


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.fc1 = nn.Linear(WIDTH, WIDTH)
        self.norm1 = nn.LayerNorm(WIDTH, EPS)
        self.act1 = nn.ReLU()
        self.gate = nn.Linear(WIDTH, WIDTH)
        self.soft = nn.Softmax(-1)
        self.fc2 = nn.Linear(WIDTH, WIDTH)
        self.act2 = nn.SiLU()
        self.norm2 = nn.LayerNorm(WIDTH, EPS)
        self.fc3 = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.act1(self.norm1(self.fc1(self.embed(tokens))))
        share = self.soft(self.gate(h))
        y = self.act2(self.fc2(h))
        return self.fc3(self.norm2(h + WIDTH * share * y))


class MadeLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int, bugs: Bugs) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return made.LinearFunction.apply(x, self.weight, self.bias, self.bugs)


class MadeEmbedding(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WORDS, WIDTH))
        self.bugs = bugs

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return made.EmbeddingFunction.apply(tokens, self.weight, self.bugs)


class MadeNorm(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return made.LayerNormFunction.apply(x, self.weight, self.bias, EPS, self.bugs)


class MadeActivation(nn.Module):
    def __init__(self, function: Any, bugs: Bugs) -> None:
        super().__init__()
        self.function, self.bugs = function, bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function.apply(x, self.bugs)


class OwnMLP(nn.Module):
    """Layer 1 is what belongs to fc1, layer 2 to fc2 and its gate, layer 3 to fc3."""

    def __init__(self, planted: Planted) -> None:
        super().__init__()
        first, second, third = (planted.at(layer) for layer in (1, 2, 3))
        self.embed = MadeEmbedding(planted.bugs)
        self.fc1 = MadeLinear(WIDTH, WIDTH, first)
        self.norm1 = MadeNorm(first)
        self.act1 = MadeActivation(made.ReLUFunction, first)
        self.gate = MadeLinear(WIDTH, WIDTH, {})
        self.soft = MadeActivation(made.SoftmaxFunction, second)
        self.fc2 = MadeLinear(WIDTH, WIDTH, second)
        self.act2 = MadeActivation(made.SiLUFunction, second)
        self.norm2 = MadeNorm(second)
        self.fc3 = MadeLinear(WIDTH, CLASSES, third)
        self.bugs = planted.bugs

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.embed(tokens)
        if "embedding-detached" in self.bugs:
            found = found.detach()
        h = self.act1(self.norm1(self.fc1(found)))
        share = self.soft(self.gate(h))
        if "gate-detached" in self.bugs:
            share = share.detach()
        if "skip-grad-scaled" in self.bugs:  # the skip sends half of its gradient
            skip = made.ScaledGradient.apply(h, 0.5)
        else:
            skip = h.detach() if "skip-detached" in self.bugs else h
        y = self.act2(self.fc2(h))
        return self.fc3(self.norm2(torch.addcmul(skip, share * WIDTH, y)))


def rewritten(linear: type[nn.Module]) -> Any:
    """The plain network with another kind of linear layer."""

    def build(planted: Planted) -> nn.Module:
        model = MLP()
        for name in ("fc1", "gate", "fc2"):
            setattr(model, name, linear(WIDTH, WIDTH))
        model.fc3 = linear(WIDTH, CLASSES)
        return model

    return build


def inputs() -> tuple[Any, ...]:
    return (torch.randint(0, WORDS, (4, 10)),)


NETWORK = Network(
    MLP,
    {
        "own": OwnMLP,
        "transposed": rewritten(TransposedLinear),
        "split": rewritten(SplitLinear),
        "samples": rewritten(SampleLinear),
        "nudged": rewritten(NudgedLinear),
    },
    inputs,
    lambda: torch.randint(0, CLASSES, (4, 10)),
    sequence_loss,
)
