"""Functions of each element, or along one axis; sums, products and joins of several tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .op_table import REQUIRED, Tensors, Weights, enter, entry

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": functional.relu, "ReLU6": functional.relu6, "SiLU": functional.silu, "Swish": functional.silu,
    "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Mish": functional.mish, "SELU": functional.selu,
    "Hardswish": functional.hardswish, "Hardsigmoid": functional.hardsigmoid, "Softsign": functional.softsign,
    "LogSigmoid": functional.logsigmoid, "Exp": torch.exp, "Log": torch.log, "Sqrt": torch.sqrt, "Erf": torch.erf,
    "Neg": torch.neg, "Abs": torch.abs, "Sin": torch.sin, "Cos": torch.cos, "Reciprocal": torch.reciprocal,
    "QuickGELU": lambda x: x * torch.sigmoid(1.702 * x), "ReLUSquared": lambda x: functional.relu(x).square(),
    "Tanhshrink": functional.tanhshrink, "Identity": lambda x: x.clone(),
}  # fmt: skip
_DIM = ("whole", -1, "axis")

for _name, _activation in ACTIVATIONS.items():
    enter(_activation, _name)
enter(functional.gelu, "GELU", approximate=("word", "none"))
enter(functional.leaky_relu, "LeakyReLU", negative_slope=("number", 0.01, "alpha"))
enter(functional.celu, "CELU", alpha=("number", 1.0))
enter(functional.elu, "ELU", alpha=("number", 1.0))
enter(functional.softplus, "Softplus", beta=("number", 1.0), threshold=("number", 20.0))
enter(functional.hardtanh, "Hardtanh", "Clip", min_val=("number", -1.0, "min"), max_val=("number", 1.0, "max"))
enter(torch.softmax, "Softmax", "Softmax2d", dim=_DIM)
enter(torch.log_softmax, "LogSoftmax", dim=_DIM)
enter(lambda x, dim: (-x).softmax(dim), "Softmin", dim=_DIM)
enter(functional.glu, "GLU", dim=_DIM)
enter(torch.sub, "Sub", inputs=2)
enter(torch.div, "Div", inputs=2)


@entry("PReLU")
def _prelu(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.prelu(x[0], w["weight"])


@entry("Add", "Sum", "Residual", inputs=-1)
def _add(x: Tensors, w: Weights, s: Any) -> Tensor:
    return reduce(torch.add, x)


@entry("Mul", inputs=-1)
def _mul(x: Tensors, w: Weights, s: Any) -> Tensor:
    return reduce(torch.mul, x)


@entry("Concat", "Cat", "Concatenate", inputs=-1, dim=("whole", REQUIRED, "axis"))
def _concat(x: Tensors, w: Weights, s: Any) -> Tensor:
    return torch.cat(list(x), s.dim)
