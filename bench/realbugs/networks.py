"""A network for releases that bring none: optimizers need weights to move."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .loading import Release


def two_layers(release: Release) -> nn.Module:
    """Four parameters, two of them matrices."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def squares(output: Any, target: Any = None) -> torch.Tensor:
    """A loss whose gradient turns as the weights move."""
    return (output - 1.0).square().mean()
