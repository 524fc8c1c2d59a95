"""Functions of elements or along an axis, sums, products and joins, the same numbers in another arrangement, pools."""

# mypy: disable-error-code="no-any-return"
# Settings are of any type, and so is what is computed with them.

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..calls import NotReplayableError
from .op_table import BY_SHAPE, REQUIRED, Tensors, Weights, both_ends, each, enter, entry

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


@entry(
    "Reshape", "Flatten", "View", "Squeeze", "Unsqueeze", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d",
    training=("flag", False),
)  # fmt: skip
def _same_numbers(x: Tensors, w: Weights, s: Any) -> Tensor:
    """The same numbers in the recorded shape; a dropout that drops nothing is one of these."""
    if s.training and tuple(x[0].shape) == s.shape:
        raise NotReplayableError("in training, which numbers were dropped is not on record")
    return x[0].reshape(s.shape).clone()


@entry("Transpose", "Permute", perm=("sizes", REQUIRED, "dims", "axes"))
def _transpose(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0].permute(s.perm).clone()


@entry("Select", dim=("whole", REQUIRED, "axis"), index=("whole", REQUIRED))
def _select(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0].select(s.dim, s.index).clone()


@entry("Slice", "Narrow", dim=("whole", REQUIRED, "axis"), start=("whole", REQUIRED), end=("whole", REQUIRED))
def _slice(x: Tensors, w: Weights, s: Any) -> Tensor:
    return torch.ops.aten.slice.Tensor(x[0], s.dim, s.start, s.end).clone()


@entry("Mean", "ReduceMean", dim=("sizes", REQUIRED, "axes", "axis"))
def _mean(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0].mean(s.dim)


_POOL: dict[str, Any] = {
    "kernel_size": ("sizes", BY_SHAPE, "kernel_shape"), "stride": ("sizes", BY_SHAPE, "strides"),
    "padding": ("sizes", (0,), "pads"), "ceil_mode": ("flag", False),
}  # fmt: skip


@entry("MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxPool", **_POOL, dilation=("sizes", (1,), "dilations"))
def _max_pool(x: Tensors, w: Weights, s: Any) -> Tensor:
    """The largest of each window; a window that was not recorded is what the shapes leave, side by side."""
    kernel, stride, padding = _pooled(x[0], s)
    pool = getattr(functional, f"max_pool{len(kernel)}d")
    return pool(x[0], kernel, stride, padding, each(s.dilation, len(kernel)), s.ceil_mode)


@entry("AvgPool1d", "AvgPool2d", "AvgPool3d", "AvgPool", "AveragePool", **_POOL, count_include_pad=("flag", BY_SHAPE))
def _average_pool(x: Tensors, w: Weights, s: Any) -> Tensor:
    """The mean of each window; torch counts the padding unless told otherwise."""
    kernel, stride, padding = _pooled(x[0], s)
    counted = True if s.count_include_pad is None else s.count_include_pad
    return getattr(functional, f"avg_pool{len(kernel)}d")(x[0], kernel, stride, padding, s.ceil_mode, counted)


def _pooled(x: Tensor, s: Any) -> tuple[list[int], list[int], list[int]]:
    axes = len(s.shape) - 2
    if axes not in (1, 2, 3) or x.dim() != len(s.shape):
        raise NotReplayableError(
            f"it pools {list(x.shape)} to {list(s.shape)}, which are not batch, channels and places"
        )
    if s.kernel_size is None:
        kernel = [n // max(1, m) for n, m in zip(x.shape[2:], s.shape[2:], strict=True)]
    else:
        kernel = each(s.kernel_size, axes)
    stride = kernel if s.stride is None else each(s.stride, axes)
    return kernel, stride, both_ends(each(s.padding, axes), axes)


def _adaptive(kind: str, *names: str) -> None:
    @entry(*names)
    def pool(x: Tensors, w: Weights, s: Any) -> Tensor:
        """As many windows as the recorded shape has; one where it has lost its axes."""
        axes = x[0].dim() - 2
        bins = s.shape[2:] if len(s.shape) == x[0].dim() else [1] * axes
        return getattr(functional, f"adaptive_{kind}_pool{axes}d")(x[0], list(bins))


_adaptive("avg", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "GlobalAveragePool", "GlobalAvgPool")
_adaptive("max", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "GlobalMaxPool")
