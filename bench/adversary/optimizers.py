"""The step of an optimizer, in the orders that correct implementations use, and wrong ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Optimizer:
    """Settings of SGD with momentum, or of AdamW. `late` counts steps wrongly."""

    name: str = "SGD"
    lr: float = 0.05
    momentum: float = 0.9
    decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    late: int = 0

    def make(self, parameters) -> torch.optim.Optimizer:
        if self.name == "SGD":
            return torch.optim.SGD(parameters, self.lr, self.momentum, weight_decay=self.decay)
        return torch.optim.AdamW(parameters, self.lr, self.betas, self.eps, self.decay)

    def state(self) -> tuple[str, ...]:
        """What it keeps beside a weight from step to step."""
        return ("momentum_buffer",) if self.name == "SGD" else ("exp_avg", "exp_avg_sq")

    def wrong(self, rng: np.random.Generator) -> list[tuple[str, Optimizer]]:
        factor = float(1 + 10 ** rng.uniform(-3, 0.3) * rng.choice([-0.4, 1]))
        found = [
            ("learning rate", replace(self, lr=self.lr * factor)),
            ("no decay", replace(self, decay=0.0)),
            ("decay x 10", replace(self, decay=self.decay * 10)),
        ]
        if self.name == "SGD":
            return [*found, ("another momentum", replace(self, momentum=self.momentum * 0.9))]
        return [
            *found,
            ("step count", replace(self, late=1)),
            ("another beta1", replace(self, betas=(0.8, self.betas[1]))),
            ("another beta2", replace(self, betas=(self.betas[0], 0.99))),
            ("another eps", replace(self, eps=1e-5)),
        ]


def update(
    optimizer: Optimizer,
    weight: Tensor,
    grad: Tensor,
    state: dict[str, Tensor],
    step: int,
    work: torch.dtype,
    fused: bool,
    short: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The weight and the state after a step, stored as they were. `fused` goes on with unrounded state, and `short`
    derives its constants in float32."""
    store = weight.dtype
    w, g = weight.to(work), grad.to(work)
    known = {key: value.to(work) for key, value in state.items()}
    if optimizer.name == "SGD":
        g = g + optimizer.decay * w
        new = {"momentum_buffer": optimizer.momentum * known["momentum_buffer"] + g if known else g}
    else:
        (a, b), zero = _settings(optimizer, short), torch.zeros_like(g)
        new = {
            "exp_avg": float(a) * known.get("exp_avg", zero) + float(1 - a) * g,
            "exp_avg_sq": float(b) * known.get("exp_avg_sq", zero) + float(1 - b) * g * g,
        }
    stored = {key: value.to(store) for key, value in new.items()}
    read = new if fused else {k: v.to(work) for k, v in stored.items()}
    return _stepped(optimizer, w, read, step, short).to(store), stored


def _settings(optimizer: Optimizer, short: bool) -> list[np.floating]:
    return [np.float32(beta) if short else np.float64(beta) for beta in optimizer.betas]


def _stepped(optimizer: Optimizer, w: Tensor, state: dict[str, Tensor], step: int, short: bool) -> Tensor:
    if optimizer.name == "SGD":
        return w - optimizer.lr * state["momentum_buffer"]
    count = step + 1 + optimizer.late
    first, second = (float(1 - beta ** type(beta)(count)) for beta in _settings(optimizer, short))
    root = torch.sqrt(state["exp_avg_sq"]) / second**0.5 + optimizer.eps
    return w * (1 - optimizer.lr * optimizer.decay) - optimizer.lr / first * (state["exp_avg"] / root)
