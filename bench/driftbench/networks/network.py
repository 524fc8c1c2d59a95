"""What a network offers to a case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..case import LossFunction, Planted


@dataclass(frozen=True)
class Network:
    """Two implementations of one function, with something to feed them.

    `candidates` are built with what is planted in them and the same configuration as the reference; the usual one is
    "own". Each has the module paths and the parameters of the reference unless a case maps names.
    """

    reference: Callable[..., nn.Module]
    candidates: Mapping[str, Callable[..., nn.Module]]
    inputs: Callable[[], tuple[Any, ...]]  # drawn from torch's generator, which is seeded
    target: Callable[[], torch.Tensor]
    loss: LossFunction
    config: Mapping[str, Any] = field(default_factory=dict)

    def make_reference(self, config: Mapping[str, Any]) -> nn.Module:
        """The reference with weights that hide nothing."""
        model = self.reference(**{**self.config, **config})
        settle(model)
        return model

    def make_candidate(self, which: str, planted: Planted, config: Mapping[str, Any]) -> nn.Module:
        """A candidate, as it is built."""
        return self.candidates[which or "own"](planted, **{**self.config, **config})


def settle(model: nn.Module) -> None:
    """Gains that are not one, biases and statistics that are not zero: those would hide mistakes."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            with torch.no_grad():
                parameter.add_(0.2 * torch.randn_like(parameter))
        elif name.endswith(("cls_token", "pos_embed")):
            with torch.no_grad():
                parameter.normal_(0, 0.5)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.3)
        elif name.endswith("running_var"):
            buffer.uniform_(0.3, 1.5)


def wide(x: torch.Tensor) -> torch.Tensor:
    """In float32 where it is shorter, as careful code computes norms and softmaxes; never less than it is."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def sequence_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all tokens."""
    return nn.functional.cross_entropy(wide(logits).flatten(0, -2), target.flatten())


def class_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over samples."""
    return nn.functional.cross_entropy(wide(logits), target)
