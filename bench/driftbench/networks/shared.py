"""One block called four times, as ALBERT does, with a head tied to the embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..case import Bugs, Planted
from .network import Network, sequence_loss
from .parts import OwnLayerNorm, OwnLinear

WORDS, WIDTH, CALLS, EPS = 30, 24, 4, 1e-5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, EPS)
        self.up = nn.Linear(WIDTH, 48)
        self.act = nn.GELU()
        self.down = nn.Linear(48, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.block = Block()
        self.norm = nn.LayerNorm(WIDTH, EPS)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for _ in range(CALLS):
            x = self.block(x)
        return self.head(self.norm(x))


class OwnGELU(nn.Module):
    """Keeps its result in a buffer, and may forget to compute a new one."""

    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.bugs, self.calls, self.kept = bugs, 0, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        call = self.calls % CALLS
        self.calls += 1
        if self.kept is None or call != self.bugs.get("stale-call", -1):
            self.kept = 0.5 * x * (1 + torch.erf(x / 2**0.5))
        return self.kept


class OwnBlock(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.norm = OwnLayerNorm(WIDTH, EPS, bugs)
        self.up = OwnLinear(WIDTH, 48)
        self.act = OwnGELU(bugs)
        self.down = OwnLinear(48, WIDTH)
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(self.down(self.act(self.up(self.norm(x)))), x)


class OwnShared(nn.Module):
    def __init__(self, planted: Planted) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.block = OwnBlock(planted.bugs)
        self.norm = OwnLayerNorm(WIDTH, EPS, {})
        self.head = OwnLinear(WIDTH, WORDS, False)
        self.head.weight = self.embed.weight
        self.calls = planted.bugs.get("calls", CALLS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for _ in range(self.calls):
            x = self.block(x)
        return self.head(self.norm(x))


def inputs() -> tuple[Any, ...]:
    return (torch.randint(0, WORDS, (2, 8)),)


NETWORK = Network(Shared, {"own": OwnShared}, inputs, lambda: torch.randint(0, WORDS, (2, 8)), sequence_loss)
