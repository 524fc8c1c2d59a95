"""What a case is: data. Its truth is read from the change between two releases, before any tool is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import nn

from .loading import Release


class Where(NamedTuple):
    """Sites as a truth names them; the port is a glob, and so is the module where one tensor has many names."""

    phase: str
    module: str
    port: str = "*"

    def holds(self, phase: str, module: str, port: str) -> bool:
        """Whether a site is one of these."""
        return self.phase == phase and fnmatchcase(module, self.module) and fnmatchcase(port, self.port)

    def __str__(self) -> str:
        return f"{self.phase} {self.module or '(root)'}:{self.port}"


@dataclass(frozen=True)
class Truth:
    """Where the fixed release first computes something else, and why.

    `change` says it in words. A cause is right that carries one of `labels`, or whose sentence says the same change:
    each of `says` is a regular expression, one of which is found in it.
    """

    where: tuple[Where, ...]
    labels: tuple[str, ...]
    change: str
    says: tuple[str, ...] = ()


Make = Callable[[Release], nn.Module]
Optimizer = Callable[[Release, nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class Case:
    """One change between two releases; `truth` is None where it left the function as it was."""

    name: str
    package: str
    buggy: str  # the candidate
    fixed: str  # the reference
    make: Make
    inputs: Callable[[], tuple[Any, ...]]
    truth: Truth | None
    source: str = ""  # what the release says of itself, or what its change shows
    loss: Callable[[Any, Any], torch.Tensor] | None = None
    optimizer: Optimizer | None = None
    steps: int = 1
    train: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)  # module paths: the candidate's to the reference's
    own: tuple[str, ...] = ()  # globs of parameters and buffers that the candidate keeps as they are
    absent: tuple[str, ...] = ()  # modules that are imported, not installed, and not used by this case
    prepare: Callable[[nn.Module], None] | None = None  # of the reference, before its weights are copied

    @property
    def rewrite(self) -> bool:
        """Whether both releases compute the same function."""
        return self.truth is None


def at(module: str, port: str = "*", phase: str = "fwd") -> Where:
    """Outputs of a module, or what it reads."""
    return Where(phase, module, port)


def updated(module: str = "*") -> tuple[Where, ...]:
    """What an optimizer left: its state and the weights, which one of them first is a matter of order."""
    return (Where("optim", module), Where("weight_after", module))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random numbers that are the same everywhere."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(*shape: int, below: int, seed: int = 0) -> torch.Tensor:
    """Random token numbers."""
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def weighted(output: Any, target: Any = None) -> torch.Tensor:
    """A loss of whatever a model returns, that gives every element a gradient of its own."""
    total = torch.zeros(())
    for leaf in _floats(output):
        weights = torch.linspace(0.5, 1.5, leaf.numel(), dtype=leaf.dtype).reshape(leaf.shape)
        total = total.to(leaf.dtype) + (leaf * weights).sum()
    return total


def _floats(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, tuple | list):
        return [leaf for one in value for leaf in _floats(one)]
    return []


class Calls(nn.Module):
    """A function, or a method of a module, as a module whose output is recorded."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*self.children(), *inputs)
