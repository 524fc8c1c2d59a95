"""What comes after the forward pass: losses, which read the model's output and the target, and optimizers.

An optimizer reads a weight and its gradient, and its state before by port; `at` is what is asked for.
"""

# mypy: disable-error-code="no-any-return"
# Settings are of any type, and so is what is computed with them.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .op_table import REQUIRED, Tensors, Weights, enter, entry

_REDUCTION = ("word", "mean")

enter(functional.mse_loss, "MSELoss", "MeanSquaredError", inputs=2, reduction=_REDUCTION)
enter(functional.l1_loss, "L1Loss", inputs=2, reduction=_REDUCTION)
enter(functional.binary_cross_entropy_with_logits, "BCEWithLogitsLoss", inputs=2, reduction=_REDUCTION)


@entry(
    "CrossEntropyLoss", "CrossEntropy", inputs=2, reduction=_REDUCTION, ignore_index=("whole", -100),
    label_smoothing=("number", 0.0),
)  # fmt: skip
def _cross_entropy(x: Tensors, w: Weights, s: Any) -> Tensor:
    target = x[1] if x[1].shape == x[0].shape else x[1].long()
    return functional.cross_entropy(
        x[0], target, None, reduction=s.reduction, ignore_index=s.ignore_index, label_smoothing=s.label_smoothing
    )


@entry("NLLLoss", inputs=2, reduction=_REDUCTION, ignore_index=("whole", -100))
def _nll(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.nll_loss(x[0], x[1].long(), None, reduction=s.reduction, ignore_index=s.ignore_index)


@entry(
    "SGD", inputs=2, lr=("number", REQUIRED, "learning_rate"), momentum=("number", 0.0), dampening=("number", 0.0),
    weight_decay=("number", 0.0), nesterov=("flag", False), maximize=("flag", False),
)  # fmt: skip
def _sgd(x: Tensors, w: Weights, s: Any) -> Tensor:
    weight, grad = x
    grad = (-grad if s.maximize else grad) + s.weight_decay * weight
    before = w.get("momentum_buffer")
    buffer = grad if before is None else s.momentum * before + (1 - s.dampening) * grad
    if s.at == "momentum_buffer":
        return buffer.clone()
    moved = grad if not s.momentum else grad + s.momentum * buffer if s.nesterov else buffer
    return weight - s.lr * moved


_ADAM: dict[str, Any] = {
    "lr": ("number", REQUIRED, "learning_rate"), "betas": ("numbers", (0.9, 0.999)),
    "eps": ("number", 1e-8, "epsilon"), "amsgrad": ("flag", False), "maximize": ("flag", False),
}  # fmt: skip


@entry("AdamW", inputs=2, **_ADAM, weight_decay=("number", 0.01), decoupled_weight_decay=("flag", True))
@entry("Adam", inputs=2, **_ADAM, weight_decay=("number", 0.0), decoupled_weight_decay=("flag", False))
def _adam(x: Tensors, w: Weights, s: Any) -> Tensor:
    weight, grad = x
    grad = -grad if s.maximize else grad
    if s.decoupled_weight_decay:
        weight = weight * (1 - s.lr * s.weight_decay)
    else:
        grad = grad + s.weight_decay * weight
    first, second = (w.get(port) for port in ("exp_avg", "exp_avg_sq"))
    first = (1 - s.betas[0]) * grad + (0.0 if first is None else s.betas[0] * first)
    second = (1 - s.betas[1]) * grad * grad + (0.0 if second is None else s.betas[1] * second)
    largest, most = second, w.get("max_exp_avg_sq")
    if s.amsgrad:
        largest = second if most is None else torch.maximum(most, second)
    step = _next_step(w.get("step"))
    if s.at == "step":
        return step.to(grad.dtype) if isinstance(step, Tensor) else torch.ones_like(grad.sum())
    states = {"exp_avg": first, "exp_avg_sq": second, "max_exp_avg_sq": largest}
    if s.at in states:
        return states[s.at].clone()
    rate, root = s.lr / (1 - s.betas[0] ** step), (largest / (1 - s.betas[1] ** step)).sqrt()
    return weight - rate * first / (root + s.eps)


def _next_step(before: Tensor | None) -> Any:
    """The number of this step, in float32 at least, whatever weights are stored in."""
    if before is None:
        return 1
    return before.reshape(()).to(torch.promote_types(before.dtype, torch.float32)) + 1


@entry("RunningStatistics", inputs=2, momentum=("number", 0.1))
def _running(x: Tensors, w: Weights, s: Any) -> Tensor:
    """A batch norm's buffer after the step, from what it was and from what the norm read."""
    before, read = x
    over = [0, *range(2, read.dim())]
    batch = read.var(over, unbiased=True) if s.at == "running_var" else read.mean(over)
    return (1 - s.momentum) * before + s.momentum * batch
