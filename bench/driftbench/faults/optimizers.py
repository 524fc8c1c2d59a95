"""Optimizers written out, with the state of PyTorch's, and what can be wrong in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..case import NO_BUGS, Bugs, OptimizerFactory


class OwnSGD(torch.optim.Optimizer):
    """SGD with momentum and weight decay."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.0, weight_decay: float = 0.0, bugs: Bugs = NO_BUGS):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.bugs = bugs

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.one(weight, group)

    def one(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        grad, lr, momentum, state = weight.grad, group["lr"], group["momentum"], self.state[weight]
        assert grad is not None
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * weight
        if "rate-twice" in self.bugs:
            grad = lr * grad
        if momentum == 0:
            weight.sub_(lr * grad)
            return
        old = state.get("momentum_buffer")
        if old is None or "momentum-forgotten" in self.bugs:
            new = grad.clone()
        else:
            new = momentum * old + (1 - self.bugs.get("dampening", 0.0)) * grad
        state["momentum_buffer"] = new
        step = grad + momentum * new if "nesterov" in self.bugs else new
        weight.sub_(lr * step)


class OwnAdamW(torch.optim.Optimizer):
    """AdamW by its formula."""

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.01, bugs: Bugs = NO_BUGS,
    ):  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.bugs = bugs

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.one(weight, group)

    def one(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        grad, lr, (one, two), eps, state = weight.grad, group["lr"], group["betas"], group["eps"], self.state[weight]
        assert grad is not None
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        state["step"] += 1
        time = float(state["step"]) + self.bugs.get("step-shift", 0)
        decay = group["weight_decay"]
        if "coupled" in self.bugs:
            grad = grad + decay * weight
            decay = 0.0
        one, two = self.bugs.get("betas", (one, two))
        state["exp_avg"] = one * state["exp_avg"] + (1 - one) * grad
        state["exp_avg_sq"] = two * state["exp_avg_sq"] + (1 - two) * grad * grad
        first, second = 1 - one**time, 1 - two**time
        if "no-bias-correction" in self.bugs:
            first = second = 1.0
        if "eps-early" in self.bugs:  # added before the bias is corrected
            root = (state["exp_avg_sq"].sqrt() + eps) / second**0.5
        elif "eps-inside" in self.bugs:
            root = (state["exp_avg_sq"] / second + eps).sqrt()
        else:
            root = (state["exp_avg_sq"] / second).sqrt() + eps
        if "decay-without-rate" in self.bugs:
            weight.mul_(1 - decay)
        else:
            weight.mul_(1 - lr * decay)
        weight.sub_(lr / first * state["exp_avg"] / root)


class Clipped:
    """Makes an optimizer that clips the norm of its gradients first; `how` is all, each, or value."""

    def __init__(self, factory: OptimizerFactory, limit: float, how: str = "all", scale: float = 1.0) -> None:
        self.factory, self.limit, self.how, self.scale = factory, limit, how, scale

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = self.factory(model)
        step = optimizer.step

        def clipped(closure: Any = None) -> None:
            params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            if self.how == "all":
                nn.utils.clip_grad_norm_(params, self.limit * self.scale)
            elif self.how == "each":
                for one in params:
                    nn.utils.clip_grad_norm_([one], self.limit)
            else:
                nn.utils.clip_grad_value_(params, self.limit)
            step()

        optimizer.step = clipped  # type: ignore[method-assign]
        return optimizer


def sgd(lr: float = 0.1, momentum: float = 0.0, **more: Any) -> OptimizerFactory:
    """PyTorch's SGD."""
    return lambda model: torch.optim.SGD(model.parameters(), lr, momentum, **more)


def own_sgd(lr: float = 0.1, momentum: float = 0.0, bugs: Bugs = NO_BUGS, **more: Any) -> OptimizerFactory:
    """Ours."""
    return lambda model: OwnSGD(model.parameters(), lr, momentum, bugs=bugs, **more)


def adamw(lr: float = 1e-2, **more: Any) -> OptimizerFactory:
    """PyTorch's AdamW."""
    return lambda model: torch.optim.AdamW(model.parameters(), lr, **more)


def own_adamw(lr: float = 1e-2, bugs: Bugs = NO_BUGS, **more: Any) -> OptimizerFactory:
    """Ours."""
    return lambda model: OwnAdamW(model.parameters(), lr, bugs=bugs, **more)


def grouped(
    make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer], split: Callable[[str, torch.Tensor], bool],
    options: dict[str, Any],
) -> OptimizerFactory:  # fmt: skip
    """An optimizer in which the parameters that `split` picks have options of their own."""

    def build(model: nn.Module) -> torch.optim.Optimizer:
        picked = [p for name, p in model.named_parameters() if split(name, p)]
        rest = [p for name, p in model.named_parameters() if not split(name, p)]
        return make([{"params": rest}, {"params": picked, **options}])

    return build
