"""Functions of each element, or along one axis; sums, products and joins of several tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .op_table import REQUIRED, Operation, Tensors, Weights, entry, needed

ENTRIES: list[Operation] = []
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": functional.relu, "ReLU6": functional.relu6, "SiLU": functional.silu, "Swish": functional.silu,
    "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Mish": functional.mish, "SELU": functional.selu,
    "Hardswish": functional.hardswish, "Hardsigmoid": functional.hardsigmoid, "Softsign": functional.softsign,
    "LogSigmoid": functional.logsigmoid, "Exp": torch.exp, "Log": torch.log, "Sqrt": torch.sqrt, "Erf": torch.erf,
    "Neg": torch.neg, "Abs": torch.abs, "Sin": torch.sin, "Cos": torch.cos, "Reciprocal": torch.reciprocal,
    "QuickGELU": lambda x: x * torch.sigmoid(1.702 * x), "ReLUSquared": lambda x: functional.relu(x).square(),
    "Tanhshrink": functional.tanhshrink, "Identity": lambda x: x.clone(),
}  # fmt: skip


for _name, _activation in ACTIVATIONS.items():
    entry(ENTRIES, _name)(lambda x, w, s, apply=_activation: apply(x[0]))  # type: ignore[misc]


@entry(ENTRIES, "GELU", "Gelu", approximate=("word", "none"))
def _gelu(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.gelu(x[0], approximate=s.approximate)


@entry(ENTRIES, "LeakyReLU", negative_slope=("number", 0.01, "alpha"))
def _leaky_relu(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.leaky_relu(x[0], s.negative_slope)


@entry(ENTRIES, "PReLU", ports=["weight"])
def _prelu(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.prelu(x[0], needed(w))


@entry(ENTRIES, "CELU", alpha=("number", 1.0))
def _celu(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.celu(x[0], s.alpha)


@entry(ENTRIES, "ELU", alpha=("number", 1.0))
def _elu(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.elu(x[0], s.alpha)


@entry(ENTRIES, "Softplus", beta=("number", 1.0), threshold=("number", 20.0))
def _softplus(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.softplus(x[0], s.beta, s.threshold)


@entry(ENTRIES, "Hardtanh", "Clip", min_val=("number", -1.0, "min"), max_val=("number", 1.0, "max"))
def _hardtanh(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.hardtanh(x[0], s.min_val, s.max_val)


@entry(ENTRIES, "Softmax", "Softmax2d", dim=("whole", -1, "axis"))
def _softmax(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0].softmax(s.dim)


@entry(ENTRIES, "LogSoftmax", dim=("whole", -1, "axis"))
def _log_softmax(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0].log_softmax(s.dim)


@entry(ENTRIES, "Softmin", dim=("whole", -1, "axis"))
def _softmin(x: Tensors, w: Weights, s: Any) -> Tensor:
    return (-x[0]).softmax(s.dim)


@entry(ENTRIES, "GLU", dim=("whole", -1, "axis"))
def _glu(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.glu(x[0], s.dim)


@entry(ENTRIES, "Add", "Sum", "Residual", inputs=-1)
def _add(x: Tensors, w: Weights, s: Any) -> Tensor:
    total = x[0]
    for tensor in x[1:]:
        total = total + tensor
    return total


@entry(ENTRIES, "Sub", inputs=2)
def _sub(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0] - x[1]


@entry(ENTRIES, "Mul", inputs=-1)
def _mul(x: Tensors, w: Weights, s: Any) -> Tensor:
    product = x[0]
    for tensor in x[1:]:
        product = product * tensor
    return product


@entry(ENTRIES, "Div", inputs=2)
def _div(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0] / x[1]


@entry(ENTRIES, "Concat", "Cat", "Concatenate", inputs=-1, dim=("whole", REQUIRED, "axis"))
def _concat(x: Tensors, w: Weights, s: Any) -> Tensor:
    return torch.cat(list(x), s.dim)
