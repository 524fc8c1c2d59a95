"""AdamW as language models are trained with: matrices decay, norms and biases do not."""

from __future__ import annotations

import torch
from torch import nn

from .run_settings import Settings, learning_rate

BETAS, EPS = (0.9, 0.999), 1e-8
STATE = ("step", "exp_avg", "exp_avg_sq")  # what it remembers of a parameter


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """A fresh optimizer: it remembers nothing, whatever the weights come from."""
    parameters = list(model.parameters())
    decayed = [parameter for parameter in parameters if parameter.ndim >= 2]
    spared = [parameter for parameter in parameters if parameter.ndim < 2]  # norms and biases are vectors
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=learning_rate(settings, 0), betas=BETAS, eps=EPS
    )


def state_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, torch.Tensor]:
    """What an optimizer remembers, as `PARAMETER.exp_avg` and so on; empty before its first step."""
    return {
        f"{name}.{key}": optimizer.state[parameter][key]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for key in STATE
    }
