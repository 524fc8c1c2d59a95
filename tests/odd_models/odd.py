"""What an odd model is: how it is made, what one step of it does, and what is then looked at."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

WIDTH, BATCH = 6, 3


def inputs(number: int, *shape: int) -> torch.Tensor:
    """The data of a step, without touching anyone's random numbers."""
    return torch.randn(shape or (BATCH, WIDTH), generator=torch.Generator().manual_seed(number))


def loss_of(output: Any) -> torch.Tensor:
    """A number from whatever a model returns."""
    if isinstance(output, torch.Tensor):
        return output.abs().square().mean() if output.is_complex() else output.float().square().mean()
    parts = output.values() if isinstance(output, dict) else output
    return sum(loss_of(part) for part in parts if part is not None)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> Any:
    """The plainest training step."""
    output = model(inputs(number))
    return finish(output, loss_of(output), optimizer)


def finish(output: Any, loss: torch.Tensor, optimizer: torch.optim.Optimizer, **options: Any) -> Any:
    """Backward, and the step of the optimizer."""
    loss.backward(**options)
    optimizer.step()
    optimizer.zero_grad()
    return output, loss


def infer(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> Any:
    """No gradients."""
    with torch.no_grad():
        return model(inputs(number))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-2)


@dataclass(frozen=True)
class Odd:
    """`step(model, optimizer, number)` gives what is looked at beside the state of the model and the optimizer."""

    make: Callable[[], nn.Module]
    step: Callable[[Any, Any, int], Any] = train
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = sgd  # None where nothing is trained
    options: dict[str, Any] = field(default_factory=dict)  # of the trace
    warns: str = ""  # what torch has to say of it


class Calls(nn.Module):
    """A module that is its forward: `forward(self, x)` with the parts that it was given."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def linear(out: int = WIDTH, given: int = WIDTH) -> nn.Linear:
    return nn.Linear(given, out)


def mlp() -> nn.Sequential:
    return nn.Sequential(linear(8), nn.Tanh(), nn.Dropout(0.2), linear(WIDTH, 8))
