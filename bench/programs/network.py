"""What a program is, and how it gets its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

Step = Callable[[nn.Module, torch.optim.Optimizer | None], None]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class Network:
    """A module and one whole step of it: a training step, or an inference where there is no optimizer."""

    name: str
    build: Callable[[], nn.Module]  # deterministic after torch.manual_seed(0), which the caller sets
    step: Step
    optimizer: MakeOptimizer | None = None


_DRAWS: WeakKeyDictionary[nn.Module, torch.Generator] = WeakKeyDictionary()


def draw_of(model: nn.Module) -> torch.Generator:
    """The data of this model: new in every step, the same in every run. Kept outside the model, which may be copied."""
    if model not in _DRAWS:
        _DRAWS[model] = torch.Generator().manual_seed(1)
    return _DRAWS[model]


def tokens(draw: torch.Generator, *shape: int, low: int = 3, high: int = 97) -> torch.Tensor:
    """Random token ids; the first three are usually special."""
    return torch.randint(low, high, shape, generator=draw)


def normal(draw: torch.Generator, *shape: int) -> torch.Tensor:
    """Random inputs."""
    return torch.randn(shape, generator=draw)


def trains(loss: Callable[[Any, torch.Generator], torch.Tensor]) -> Step:
    """The plainest training step on a loss."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        assert optimizer is not None
        loss(model, draw_of(model)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def infers(run: Callable[[Any, torch.Generator], object]) -> Step:
    """An inference without gradients."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        with torch.no_grad():
            run(model, draw_of(model))

    return step


def adamw(**more: Any) -> MakeOptimizer:
    """AdamW over all parameters; `more` says which implementation."""
    return lambda model: torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, **more})


def sgd(**more: Any) -> MakeOptimizer:
    """SGD over all parameters; `more` says which kind."""
    return lambda model: torch.optim.SGD(model.parameters(), **{"lr": 1e-2, **more})
