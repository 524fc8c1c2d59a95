"""The library: what an operation computes, by the name that engines and frameworks give it, as a function of torch.

An entry is a formula. Its calls, and those of its derivative, are found out from it (`call_templates`), so that nothing
is written twice. Nothing here is believed because it stands here: a call counts where it reproduces what was recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite, prod
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..strict_json import Json
from .call_templates import DTYPES
from .interpreter import NotReplayableError

Tensors = Sequence[Tensor]
Weights = Mapping[str, list[Tensor]]  # by port; several where several modules' weights are read
Formula = Callable[[Tensors, Weights, Any], Tensor]


class _Required:
    """The default of a setting that is never guessed."""


REQUIRED = _Required()
BY_SHAPE = None  # the default of a setting that the shapes tell


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting by its names, the first of which is ours; `default` is the documented one of the operation."""

    names: tuple[str, ...]
    kind: str  # number, whole, sizes, flag, word, numbers, padding
    default: Any

    def read(self, attrs: Mapping[str, Json]) -> Any:
        """Its value; what cannot be meant is refused."""
        name = next((one for one in self.names if attrs.get(one) is not None), None)
        if name is None:
            if self.default is REQUIRED:
                raise NotReplayableError(f"{self.names[0]} was not recorded")
            return self.default
        value = _KINDS[self.kind](attrs[name])
        if value is None:
            raise NotReplayableError(f"{name} is {attrs[name]!r}, which is no {_WORDS[self.kind]}")
        return value


@dataclass(frozen=True, slots=True)
class Operation:
    """An entry of the table: its names, its settings, its formula.

    `inputs` is how many tensors it reads: 0 for any number, -1 for two or more.
    """

    names: tuple[str, ...]
    settings: tuple[Setting, ...]
    inputs: int
    formula: Formula
    ports: tuple[str, ...] = ()  # of the weights that it cannot do without
    outputs: int = 1

    def settled(self, attrs: Mapping[str, Json]) -> tuple[dict[str, Any], list[str]]:
        """Its settings, and the names of those that were not recorded and have the default."""
        found = {one.names[0]: one.read(attrs) for one in self.settings}
        missing = [
            one.names[0] for one in self.settings
            if one.default is not BY_SHAPE and not any(attrs.get(name) is not None for name in one.names)
        ]  # fmt: skip
        return found, missing

    def function(
        self,
        settings: Mapping[str, Any],
        inputs: int,
        ports: Sequence[str],
        shape: tuple[int, ...],
        dtype: str,
        at: int,
    ) -> Callable[[Sequence[Tensor]], Tensor]:
        """The formula of inputs and weights in a row, brought to the shape and dtype that were recorded."""

        def compute(given: Sequence[Tensor]) -> Tensor:
            given = _alike(given)
            weights: dict[str, list[Tensor]] = {}
            for port, one in zip(ports, given[inputs:], strict=True):
                weights.setdefault(PORTS.get(port, port), []).append(one)
            for port in self.ports:
                if port not in weights:
                    raise NotReplayableError(f"no {port} of it was recorded")
            said = SimpleNamespace(**settings, shape=shape, at=at, kernel="kernel" in ports)
            made = self.formula(given[:inputs], weights, said)
            if prod(made.shape) != prod(shape):
                raise NotReplayableError(f"it would give {list(made.shape)}, and {list(shape)} was recorded")
            made = made if tuple(made.shape) == shape else made.reshape(shape)
            return made if made.dtype == DTYPES[dtype] else made.to(DTYPES[dtype])

        return compute


# What other engines call the weights of a module.
PORTS = {
    "W": "weight", "kernel": "weight", "gamma": "weight", "scale": "weight", "embedding": "weight", "B": "bias",
    "beta": "bias", "mean": "running_mean", "var": "running_var", "moving_mean": "running_mean",
    "moving_variance": "running_var", "input_mean": "running_mean", "input_var": "running_var",
}  # fmt: skip
OPERATIONS: list[Operation] = []
_IGNORED = frozenset({"torch", "nn", "functional", "aten", "default", "tensor", "jax", "lax", "flax", "linen", "onnx"})
_LEAST = 4  # letters of a name that may end a longer one, such as LlamaRMSNorm
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": functional.relu, "ReLU6": functional.relu6, "SiLU": functional.silu, "Swish": functional.silu,
    "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Mish": functional.mish, "SELU": functional.selu,
    "Hardswish": functional.hardswish, "Hardsigmoid": functional.hardsigmoid, "Softsign": functional.softsign,
    "LogSigmoid": functional.logsigmoid, "Exp": torch.exp, "Log": torch.log, "Sqrt": torch.sqrt, "Erf": torch.erf,
    "Neg": torch.neg, "Abs": torch.abs, "Sin": torch.sin, "Cos": torch.cos, "Reciprocal": torch.reciprocal,
    "QuickGELU": lambda x: x * torch.sigmoid(1.702 * x), "ReLUSquared": lambda x: functional.relu(x).square(),
    "Tanhshrink": functional.tanhshrink, "Identity": lambda x: x.clone(),
}  # fmt: skip


@cache
def named(op: str) -> Operation | None:
    """The entry of a name: the name itself, or the longest that ends it."""
    parts = [part for part in re.split(r"[.:/]", op) if part.lower() not in _IGNORED]
    plain = re.sub(r"[^a-z0-9]", "", parts[-1].lower()) if parts else ""
    names = {name.lower(): operation for operation in OPERATIONS for name in operation.names}
    if plain in names:
        return names[plain]
    ends = [name for name in names if len(name) >= _LEAST and plain.endswith(name)]
    return names[max(ends, key=len)] if ends else None


def _operation(
    *names: str, inputs: int = 1, ports: Sequence[str] = (), outputs: int = 1, **settings: Any
) -> Callable[[Formula], Formula]:
    """Enter a formula: a setting is given as its kind, its default and its further names."""

    def add(formula: Formula) -> Formula:
        told = tuple(Setting((name, *more), kind, default) for name, (kind, default, *more) in settings.items())
        OPERATIONS.append(Operation(names, told, inputs, formula, tuple(ports), outputs))
        return formula

    return add


def _number(said: Json) -> float | None:
    return float(said) if type(said) in (int, float) and isfinite(said) else None


def _whole(said: Json) -> int | None:
    return said if type(said) is int and abs(said) < 1 << 40 else None


def _sizes(said: Json) -> tuple[int, ...] | None:
    items = said if isinstance(said, list | tuple) else [said]
    found = tuple(one for one in items if type(one) is int and abs(one) < 1 << 40)
    return found if len(found) == len(items) <= 64 else None


def _numbers(said: Json) -> tuple[float, ...] | None:
    found = tuple(map(_number, said)) if isinstance(said, list | tuple) else (None,)
    return None if None in found else found  # type: ignore[return-value]


_KINDS: Mapping[str, Callable[[Json], Any]] = {
    "number": _number,
    "whole": _whole,
    "sizes": _sizes,
    "numbers": _numbers,
    "flag": lambda said: bool(said) if said in (0, 1, True, False) else None,
    "word": lambda said: said if isinstance(said, str) else None,
    "padding": lambda said: said if isinstance(said, str) else _sizes(said),
}
_WORDS = {
    "number": "finite number", "whole": "whole number", "sizes": "size or list of sizes", "numbers": "list of numbers",
    "flag": "true or false", "word": "word", "padding": "size, list of sizes or word",
}  # fmt: skip


def _alike(given: Sequence[Tensor]) -> list[Tensor]:
    """Floats of several dtypes in the widest of them, as an engine has to bring them together, too."""
    kinds = {one.dtype for one in given if one.is_floating_point()}
    if len(kinds) < 2:
        return list(given)
    widest = max(kinds, key=lambda kind: torch.finfo(kind).bits)
    return [one.to(widest) if one.is_floating_point() else one for one in given]


def wide(dtype: torch.dtype) -> torch.dtype:
    """What norms and softmax are computed in: float32 where a model's dtype is narrower."""
    return dtype if torch.finfo(dtype).bits >= 32 else torch.float32


def _one(weights: Weights, port: str) -> Tensor | None:
    """A weight, or several that were recorded apart and are used as one."""
    found = weights.get(port)
    return None if not found else found[0] if len(found) == 1 else torch.cat(found)


def _weight(weights: Weights, port: str = "weight") -> Tensor:
    found = _one(weights, port)
    if found is None:
        raise NotReplayableError(f"no {port} of it was recorded")
    return found


def _each(sizes: tuple[int, ...], axes: int) -> list[int]:
    return list(sizes) * axes if len(sizes) == 1 else list(sizes)


def _plus(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


def _capped(x: Tensor, cap: float | None) -> Tensor:
    return x if not cap else torch.tanh(x / cap) * cap


# ---- products with weights


@_operation("Linear", "Dense", "InnerProduct", "FullyConnected", "FC", ports=["weight"], softcap=("number", BY_SHAPE))
def _linear(x: Tensors, w: Weights, s: Any) -> Tensor:
    """`x @ weight.T + bias`; several weights are one, their outputs behind each other."""
    weight = _weight(w)
    if s.kernel:  # flax and keras store it the other way round
        return _capped(_plus(x[0] @ weight, _one(w, "bias")), s.softcap)
    return _capped(functional.linear(x[0], weight, _one(w, "bias")), s.softcap)


@_operation(
    "Gemm", inputs=0, alpha=("number", 1.0), beta=("number", 1.0), transA=("flag", False), transB=("flag", False)
)
def _gemm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """ONNX's: `alpha A B + beta C`, of tensors or weights."""
    matrices = [*x, *w.get("weight", ()), *w.get("bias", ())]
    a, b = (
        one.transpose(-1, -2) if turned else one for one, turned in zip(matrices, (s.transA, s.transB), strict=False)
    )
    made = s.alpha * (a @ b)
    return made if len(matrices) < 3 else made + s.beta * matrices[2]


@_operation("MatMul", "bmm", "mm", inputs=0)
def _matmul(x: Tensors, w: Weights, s: Any) -> Tensor:
    """The product of two tensors, or of one with a weight stored as (in, out)."""
    a, b = [*x, *w.get("weight", ())]
    return _plus(a @ b, _one(w, "bias"))


@_operation("BiasAdd", ports=["bias"])
def _bias_add(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0] + _weight(w, "bias")


@_operation("Embedding", "Gather", ports=["weight"], scale=("number", 1.0))
def _embedding(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Rows of a table, times a scale."""
    rows = functional.embedding(x[0].long(), _weight(w))
    return rows if s.scale == 1.0 else rows * s.scale


@_operation(
    "Conv1d", "Conv2d", "Conv3d", "Conv", ports=["weight"], stride=("sizes", BY_SHAPE, "strides"),
    padding=("padding", BY_SHAPE, "pads"), dilation=("sizes", (1,), "dilations"), groups=("whole", 1, "group"),
    padding_mode=("word", "zeros"), auto_pad=("word", "NOTSET"),
)  # fmt: skip
def _conv(x: Tensors, w: Weights, s: Any) -> Tensor:
    """A convolution; padding that was not recorded is what the shapes leave."""
    weight, bias = _weight(w), _one(w, "bias")
    if weight.dim() == 2:  # GPT-2's Conv1D is a linear layer with its weight the other way round
        return _plus(x[0] @ weight, bias)
    axes = weight.dim() - 2
    dilation = _each(s.dilation, axes)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    stride, before, behind = _window(x[0].shape[2:], s.shape[2:], reach, s.stride, s.padding, s.auto_pad)
    padded, inside = x[0], before
    if before != behind or s.padding_mode != "zeros":
        sides = [side for pair in zip(reversed(before), reversed(behind), strict=True) for side in pair]
        mode = "constant" if s.padding_mode == "zeros" else s.padding_mode
        padded, inside = functional.pad(x[0], sides, mode), [0] * axes
    return torch.convolution(padded, weight, bias, stride, inside, dilation, False, [0] * axes, s.groups)


@_operation(
    "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "ConvTranspose", ports=["weight"],
    stride=("sizes", (1,), "strides"), padding=("sizes", (0,), "pads"), dilation=("sizes", (1,), "dilations"),
    output_padding=("sizes", (0,)), groups=("whole", 1, "group"),
)  # fmt: skip
def _conv_transposed(x: Tensors, w: Weights, s: Any) -> Tensor:
    weight = _weight(w)
    axes = weight.dim() - 2
    stride, padding, dilation, more = (_each(one, axes) for one in (s.stride, s.padding, s.dilation, s.output_padding))
    if len(padding) == 2 * axes:  # ONNX gives both ends
        if padding[:axes] != padding[axes:]:
            raise NotReplayableError(f"padding is {padding}, another one behind than before")
        padding = padding[:axes]
    return torch.convolution(x[0], weight, _one(w, "bias"), stride, padding, dilation, True, more, s.groups)


def _window(
    size: Sequence[int], found: Sequence[int], reach: Sequence[int], stride: Any, padding: Any, auto: str
) -> tuple[list[int], list[int], list[int]]:
    """Stride, and padding before and behind, as recorded or as the shapes leave it."""
    axes = len(reach)
    if len(size) != axes or len(found) != axes:
        raise NotReplayableError(f"its window has {axes} axes, its input {len(size)} and its output {len(found)}")
    steps = [None] * axes if stride is None else _each(stride, axes)
    word = padding.lower() if isinstance(padding, str) else {"SAME_UPPER": "same", "VALID": "valid"}.get(auto)
    if word == "same" or (padding is None and word is None):
        solved = [_solved(*one) for one in zip(size, found, reach, steps, strict=True)]
        return [one[0] for one in solved], [one[1] for one in solved], [one[2] for one in solved]
    sides = [0] * axes if word == "valid" else _each(padding, axes)
    before, behind = (sides[:axes], sides[axes:]) if len(sides) == 2 * axes else (sides, sides)
    return [1 if one is None else one for one in steps], before, behind


def _solved(size: int, found: int, reach: int, stride: int | None) -> tuple[int, int, int]:
    """The stride and the least padding that make this size; one that is odd has its larger half behind."""
    for step in [stride] if stride is not None else [1, *range(2, max(2, size // max(1, found) + 2))]:
        if step < 1:
            break
        total = max(0, (found - 1) * step + reach - size)
        if total < reach and (size + total - reach) // step + 1 == found:
            return step, total // 2, total - total // 2
    raise NotReplayableError(f"no window of {reach} makes {found} of {size}")


# ---- norms


@_operation("LayerNorm", "LayerNormalization", eps=("number", 1e-5, "epsilon", "variance_epsilon"),
            axes=("whole", BY_SHAPE))  # fmt: skip
def _layer_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Over the axes that the weight has, else over the last."""
    weight = _one(w, "weight")
    count = s.axes or (1 if weight is None else weight.dim())
    return functional.layer_norm(x[0], x[0].shape[-count:], weight, _one(w, "bias"), s.eps)


@_operation("RMSNorm", "RMSNormalization", "SimplifiedLayerNormalization",
            eps=("number", REQUIRED, "epsilon", "variance_epsilon"), offset=("number", 0.0))  # fmt: skip
def _rms_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """`x / rms(x) * (offset + weight)`; where an offset is added, rounding comes last."""
    return _rms(x[0], _one(w, "weight"), s.eps, s.offset)


def _rms(x: Tensor, weight: Tensor | None, eps: float, offset: float) -> Tensor:
    values = x.to(wide(x.dtype))
    over = list(range(-(1 if weight is None else weight.dim()), 0))
    normed = values * torch.rsqrt(values.pow(2).mean(over, keepdim=True) + eps)
    if weight is None:
        return normed.to(x.dtype)
    if offset:
        return (normed * (offset + weight.to(normed.dtype))).to(x.dtype)
    return weight * normed.to(x.dtype)


@_operation("AddNorm", inputs=2, ports=["weight"], eps=("number", REQUIRED), offset=("number", 0.0))
def _add_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """A residual stream to which the RMS norm of the first tensor is added, as in Gemma 2."""
    return x[1] + _rms(x[0], _one(w, "weight"), s.eps, s.offset)


@_operation("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNorm", "BatchNormalization",
            eps=("number", 1e-5, "epsilon"), training=("flag", False, "training_mode"))  # fmt: skip
def _batch_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """By channel, with the running statistics; in training, or where there are none, with the batch's."""
    weight, bias = _one(w, "weight"), _one(w, "bias")
    if s.training or "running_mean" not in w:
        return functional.batch_norm(x[0], None, None, weight, bias, True, 0.0, s.eps)
    shape = [1, -1, *[1] * (x[0].dim() - 2)]
    made = (x[0] - _weight(w, "running_mean").view(shape)) * torch.rsqrt(_weight(w, "running_var") + s.eps).view(shape)
    made = made if weight is None else made * weight.view(shape)
    return made if bias is None else made + bias.view(shape)


@_operation("GroupNorm", "GroupNormalization", num_groups=("whole", REQUIRED), eps=("number", 1e-5, "epsilon"))
def _group_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.group_norm(x[0], s.num_groups, _one(w, "weight"), _one(w, "bias"), s.eps)


@_operation("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "InstanceNormalization",
            eps=("number", 1e-5, "epsilon"))  # fmt: skip
def _instance_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """By channel of each sample: a group norm with a group a channel."""
    return functional.group_norm(x[0], x[0].shape[1], _one(w, "weight"), _one(w, "bias"), s.eps)


# ---- functions of each element, or along one axis

for _name, _activation in ACTIVATIONS.items():
    _operation(_name)(lambda x, w, s, apply=_activation: apply(x[0]))  # type: ignore[misc]


@_operation("GELU", "Gelu", approximate=("word", "none"))
def _gelu(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.gelu(x[0], approximate=s.approximate)


@_operation("LeakyReLU", negative_slope=("number", 0.01, "alpha"))
def _leaky_relu(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.leaky_relu(x[0], s.negative_slope)


@_operation("PReLU", ports=["weight"])
def _prelu(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.prelu(x[0], _weight(w))


@_operation("ELU", "CELU", alpha=("number", 1.0))
def _elu(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.elu(x[0], s.alpha)


@_operation("Softplus", beta=("number", 1.0), threshold=("number", 20.0))
def _softplus(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.softplus(x[0], s.beta, s.threshold)


@_operation("Hardtanh", "Clip", min_val=("number", -1.0, "min"), max_val=("number", 1.0, "max"))
def _hardtanh(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.hardtanh(x[0], s.min_val, s.max_val)


@_operation("Softmax", "Softmax2d", dim=("whole", -1, "axis"))
def _softmax(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0].softmax(s.dim)


@_operation("LogSoftmax", dim=("whole", -1, "axis"))
def _log_softmax(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0].log_softmax(s.dim)


@_operation("Softmin", dim=("whole", -1, "axis"))
def _softmin(x: Tensors, w: Weights, s: Any) -> Tensor:
    return (-x[0]).softmax(s.dim)


@_operation("GLU", dim=("whole", -1, "axis"))
def _glu(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.glu(x[0], s.dim)


# ---- several tensors


@_operation("Add", "Sum", "Residual", inputs=-1)
def _add(x: Tensors, w: Weights, s: Any) -> Tensor:
    total = x[0]
    for one in x[1:]:
        total = total + one
    return total


@_operation("Sub", inputs=2)
def _sub(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0] - x[1]


@_operation("Mul", inputs=-1)
def _mul(x: Tensors, w: Weights, s: Any) -> Tensor:
    product = x[0]
    for one in x[1:]:
        product = product * one
    return product


@_operation("Div", inputs=2)
def _div(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0] / x[1]


@_operation("Concat", "Cat", "Concatenate", inputs=-1, dim=("whole", REQUIRED, "axis"))
def _concat(x: Tensors, w: Weights, s: Any) -> Tensor:
    return torch.cat(list(x), s.dim)


# ---- the same numbers elsewhere, and pools


@_operation("Reshape", "Flatten", "View", "Squeeze", "Unsqueeze", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d",
            training=("flag", False))  # fmt: skip
def _same_numbers(x: Tensors, w: Weights, s: Any) -> Tensor:
    """The same numbers in the recorded shape; a dropout that drops nothing is one of these."""
    if s.training and tuple(x[0].shape) == s.shape:
        raise NotReplayableError("in training, which numbers were dropped is not on record")
    return x[0].reshape(s.shape).clone()


@_operation("Transpose", "Permute", perm=("sizes", REQUIRED, "dims", "axes"))
def _transpose(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0].permute(s.perm).clone()


@_operation("Select", dim=("whole", REQUIRED, "axis"), index=("whole", REQUIRED))
def _select(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0].select(s.dim, s.index).clone()


@_operation("Slice", "Narrow", dim=("whole", REQUIRED, "axis"), start=("whole", REQUIRED), end=("whole", REQUIRED))
def _slice(x: Tensors, w: Weights, s: Any) -> Tensor:
    return torch.ops.aten.slice.Tensor(x[0], s.dim, s.start, s.end).clone()


@_operation("Mean", "ReduceMean", dim=("sizes", REQUIRED, "axes", "axis"))
def _mean(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0].mean(s.dim)


_POOL = {
    "kernel_size": ("sizes", BY_SHAPE, "kernel_shape"), "stride": ("sizes", BY_SHAPE, "strides"),
    "padding": ("sizes", (0,), "pads"), "ceil_mode": ("flag", False),
}  # fmt: skip


@_operation("MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxPool", **_POOL, dilation=("sizes", (1,), "dilations"))
def _max_pool(x: Tensors, w: Weights, s: Any) -> Tensor:
    """The largest of each window; a window that was not recorded is what the shapes leave, side by side."""
    pool = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
    kernel, stride, padding = _pooled(x[0], s)
    return pool[len(kernel) - 1](x[0], kernel, stride, padding, _each(s.dilation, len(kernel)), s.ceil_mode)


@_operation("AvgPool1d", "AvgPool2d", "AvgPool3d", "AvgPool", "AveragePool", **_POOL,
            count_include_pad=("flag", BY_SHAPE))  # fmt: skip
def _average_pool(x: Tensors, w: Weights, s: Any) -> Tensor:
    """The mean of each window; torch counts the padding unless told otherwise."""
    pool = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)
    kernel, stride, padding = _pooled(x[0], s)
    counted = True if s.count_include_pad is None else s.count_include_pad
    return pool[len(kernel) - 1](x[0], kernel, stride, padding, s.ceil_mode, counted)


def _pooled(x: Tensor, s: Any) -> tuple[list[int], list[int], list[int]]:
    axes = len(s.shape) - 2
    if axes not in (1, 2, 3) or x.dim() != len(s.shape):
        raise NotReplayableError(
            f"it pools {list(x.shape)} to {list(s.shape)}, which are not batch, channels and places"
        )
    if s.kernel_size is None:
        kernel = [n // max(1, m) for n, m in zip(x.shape[2:], s.shape[2:], strict=True)]
    else:
        kernel = _each(s.kernel_size, axes)
    padding = _each(s.padding, axes)
    if len(padding) == 2 * axes:
        if padding[:axes] != padding[axes:]:
            raise NotReplayableError(f"padding is {padding}, another one behind than before")
        padding = padding[:axes]
    return kernel, kernel if s.stride is None else _each(s.stride, axes), padding


@_operation("AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "GlobalAveragePool", "GlobalAvgPool")
def _adaptive_average(x: Tensors, w: Weights, s: Any) -> Tensor:
    pool = (functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d)
    return pool[x[0].dim() - 3](x[0], _bins(x[0], s))  # type: ignore[arg-type]


@_operation("AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "GlobalMaxPool")
def _adaptive_max(x: Tensors, w: Weights, s: Any) -> Tensor:
    pool = (functional.adaptive_max_pool1d, functional.adaptive_max_pool2d)
    made: Tensor = pool[x[0].dim() - 3](x[0], _bins(x[0], s))  # type: ignore[assignment, arg-type]
    return made


def _bins(x: Tensor, s: Any) -> list[int]:
    return list(s.shape[2:]) if len(s.shape) == x.dim() else [1] * (x.dim() - 2)


# ---- recurrent networks


def _recurrent(kind: str) -> None:
    @_operation(kind, inputs=0, outputs=3, hidden_size=("whole", REQUIRED), num_layers=("whole", 1), bidirectional=("flag", False),
                batch_first=("flag", False), nonlinearity=("word", "tanh"), proj_size=("whole", 0))  # fmt: skip
    def network(x: Tensors, w: Weights, s: Any) -> Tensor:
        """From no state, or from those given behind the sequence; `at` chooses output, last state or last cell."""
        ways = 2 if s.bidirectional else 1
        ends = [f"_l{layer}{way}" for layer in range(s.num_layers) for way in ("", "_reverse")[:ways]]
        biased = "bias_ih_l0" in w
        parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if biased else 2]
        flat = [_weight(w, part + end) for end in ends for part in parts]
        if s.proj_size:
            raise NotReplayableError("projections of recurrent networks are not in the library")
        batch = x[0].shape[0 if s.batch_first else 1]
        none = x[0].new_zeros(s.num_layers * ways, batch, s.hidden_size)
        how = (flat, biased, s.num_layers, 0.0, False, s.bidirectional, s.batch_first)
        if kind == "LSTM":
            return torch.lstm(x[0], x[1:3] if len(x) > 2 else (none, none), *how)[s.at]
        run = torch.gru if kind == "GRU" else torch.rnn_relu if s.nonlinearity == "relu" else torch.rnn_tanh
        return run(x[0], x[1] if len(x) > 1 else none, *how)[s.at]


_recurrent("LSTM")
_recurrent("GRU")
_recurrent("RNN")


# ---- attention, in parts; heads of a token lie together: [batch, tokens, heads, size]


@_operation("ScaledDotProductAttention", "SDPA", inputs=-1, scale=("number", BY_SHAPE), is_causal=("flag", False))
def _attention(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Query, key, value and perhaps a mask, `[..., heads, tokens, size]`."""
    q, k, v = x[:3]
    k, v = (one.repeat_interleave(q.shape[-3] // k.shape[-3], -3) if q.dim() > 3 else one for one in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if s.scale is None else s.scale)
    if len(x) > 3:
        scores = scores.masked_fill(~x[3], -torch.inf) if x[3].dtype == torch.bool else scores + x[3]
    if s.is_causal:
        scores = scores.masked_fill(~_visible(scores, None), -torch.inf)
    return scores.softmax(-1, dtype=wide(q.dtype)).to(q.dtype) @ v


@_operation("Heads", heads=("whole", REQUIRED), head_dim=("whole", REQUIRED), start=("whole", 0),
            eps=("number", BY_SHAPE), offset=("number", 0.0))  # fmt: skip
def _heads(x: Tensors, w: Weights, s: Any) -> Tensor:
    """A stretch of the last axis, cut into heads; with a weight, each is RMS-normed."""
    split = x[0][..., s.start : s.start + s.heads * s.head_dim].unflatten(-1, (s.heads, s.head_dim))
    if "weight" not in w:
        return split.clone()
    if s.eps is None:
        raise NotReplayableError("eps was not recorded")
    return _rms(split, _weight(w), s.eps, s.offset)


@_operation(
    "RoPE", "RotaryEmbedding", theta=("number", REQUIRED, "base", "rope_theta"), position=("whole", 0),
    partial=("number", 1.0), adjacent=("flag", False, "interleaved"), scaling=("word", "default"),
    factor=("number", 1.0), low_freq_factor=("number", 1.0), high_freq_factor=("number", 4.0),
    original_positions=("whole", 8192), divisors=("numbers", BY_SHAPE),
)  # fmt: skip
def _rope(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Pairs of a head's dimensions turned by the position times a frequency, from `position` on."""
    size = int(x[0].shape[-1] * s.partial)
    dtype = wide(x[0].dtype)
    places = torch.arange(s.position, s.position + x[0].shape[1], device=x[0].device, dtype=dtype)
    turned = places[:, None] * _frequencies(s, size, dtype, x[0].device)
    turned = turned.repeat_interleave(2, -1) if s.adjacent else torch.cat((turned, turned), -1)
    cos, sin = (part.to(x[0].dtype)[:, None] for part in (turned.cos(), turned.sin()))
    turning, still = x[0][..., :size], x[0][..., size:]
    if s.adjacent:
        partner = torch.stack((-turning[..., 1::2], turning[..., ::2]), -1).flatten(-2)
    else:
        partner = torch.cat((-turning[..., size // 2 :], turning[..., : size // 2]), -1)
    return torch.cat((turning * cos + partner * sin, still), -1)


def _frequencies(s: Any, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    found = 1.0 / (s.theta ** (torch.arange(0, size, 2, dtype=dtype, device=device) / size))
    if s.divisors is not None:
        return torch.stack([found[at] / one for at, one in enumerate(s.divisors)])
    if s.scaling == "linear":
        return found / s.factor
    if s.scaling == "llama3":
        turns = s.original_positions * found / (2 * torch.pi)
        share = ((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)).clamp(0, 1)
        return (1 - share) * found / s.factor + share * found
    if s.scaling != "default":
        raise NotReplayableError(f"scaling is {s.scaling!r}, and only default, linear and llama3 are in the library")
    return found


@_operation("AttentionScores", inputs=-1, scale=("number", REQUIRED))
def _scores(x: Tensors, w: Weights, s: Any) -> Tensor:
    """A query and the keys so far, step after step: `[batch, heads, tokens, positions]`, scaled."""
    q, k = x[0].transpose(1, 2), torch.cat(list(x[1:]), 1).transpose(1, 2)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return q @ k.transpose(2, 3) * s.scale


@_operation("CausalSoftmax", softcap=("number", BY_SHAPE), window=("whole", BY_SHAPE))
def _causal_softmax(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Of scores `[batch, heads, tokens, positions]`, of which the last positions are the tokens' own."""
    scores = _capped(x[0], s.softcap)
    scores = scores.masked_fill(~_visible(scores, s.window), torch.finfo(scores.dtype).min)
    return scores.softmax(-1, dtype=wide(x[0].dtype)).to(x[0].dtype)


def _visible(scores: Tensor, window: int | None) -> Tensor:
    new, every = scores.shape[-2:]
    query = torch.arange(every - new, every, device=scores.device)[:, None]
    key = torch.arange(every, device=scores.device)
    return key <= query if window is None else (key <= query) & (key > query - window)


@_operation("AttentionMix", inputs=-1, kv_heads=("whole", REQUIRED), head_dim=("whole", REQUIRED))
def _mix(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Attention's weights times the values, which are the last stretch of queries, keys and values in a row."""
    values = torch.cat([one[..., -s.kv_heads * s.head_dim :] for one in x[1:]], 1)
    v = values.unflatten(-1, (s.kv_heads, s.head_dim)).transpose(1, 2)
    v = v.repeat_interleave(x[0].shape[1] // s.kv_heads, 1)
    return (x[0] @ v).transpose(1, 2).flatten(2)


# ---- a mixture of experts


@_operation("Router", ports=["weight"], per_token=("whole", REQUIRED, "num_experts_per_tok"), normalised=("flag", REQUIRED),
            indices=("flag", False))  # fmt: skip
def _router(x: Tensors, w: Weights, s: Any) -> Tensor:
    """The weights of each token's experts, the strongest first; or their numbers."""
    scores = functional.linear(x[0], _weight(w)).softmax(-1, dtype=wide(x[0].dtype))
    chosen, numbers = scores.topk(s.per_token, -1)
    if s.indices:
        return numbers
    return (chosen / chosen.sum(-1, keepdim=True) if s.normalised else chosen).to(x[0].dtype)


@_operation("Experts", inputs=3, activation=("word", REQUIRED), ports=["weight"])
def _experts(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Weights and numbers of each token's experts, and the tokens; the experts' gate, up and down in a row."""
    share, numbers, tokens = x
    apply = _by_config(s.activation)
    total = torch.zeros_like(tokens)
    for number, (gate, up, down) in enumerate(zip(*[iter(w["weight"])] * 3, strict=True)):
        made = functional.linear(apply(functional.linear(tokens, gate)) * functional.linear(tokens, up), down)
        total = total + made * (share * (numbers == number)).sum(-1, keepdim=True)
    return total


def _by_config(word: str) -> Callable[[Tensor], Tensor]:
    """An activation by the name that a config.json gives it."""
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": functional.silu, "gelu": functional.gelu, "relu": functional.relu,
        "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }  # fmt: skip
    if word not in known:
        raise NotReplayableError(f"activation is {word!r}, and only {', '.join(known)} are in the library")
    return known[word]


# ---- losses: what the model gives, then the target


@_operation("CrossEntropyLoss", "CrossEntropy", inputs=2, reduction=("word", "mean"), ignore_index=("whole", -100),
            label_smoothing=("number", 0.0))  # fmt: skip
def _cross_entropy(x: Tensors, w: Weights, s: Any) -> Tensor:
    target = x[1] if x[1].shape == x[0].shape else x[1].long()
    return functional.cross_entropy(
        x[0], target, None, reduction=s.reduction, ignore_index=s.ignore_index, label_smoothing=s.label_smoothing
    )


@_operation("NLLLoss", inputs=2, reduction=("word", "mean"), ignore_index=("whole", -100))
def _nll(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.nll_loss(x[0], x[1].long(), None, reduction=s.reduction, ignore_index=s.ignore_index)


@_operation("MSELoss", "MeanSquaredError", inputs=2, reduction=("word", "mean"))
def _mse(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.mse_loss(x[0], x[1], reduction=s.reduction)


@_operation("L1Loss", inputs=2, reduction=("word", "mean"))
def _l1(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.l1_loss(x[0], x[1], reduction=s.reduction)


@_operation("BCEWithLogitsLoss", inputs=2, reduction=("word", "mean"))
def _binary(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.binary_cross_entropy_with_logits(x[0], x[1], reduction=s.reduction)


# ---- optimizers: the weight, its gradient, then the state before by port; `at` is what is asked for


@_operation("SGD", inputs=2, lr=("number", REQUIRED, "learning_rate"), momentum=("number", 0.0),
            dampening=("number", 0.0), weight_decay=("number", 0.0), nesterov=("flag", False),
            maximize=("flag", False))  # fmt: skip
def _sgd(x: Tensors, w: Weights, s: Any) -> Tensor:
    weight, grad = x
    grad = (-grad if s.maximize else grad) + s.weight_decay * weight
    before = _one(w, "momentum_buffer")
    buffer = grad if before is None else s.momentum * before + (1 - s.dampening) * grad
    if s.at == "momentum_buffer":
        return buffer.clone()
    moved = grad if not s.momentum else grad + s.momentum * buffer if s.nesterov else buffer
    return weight - s.lr * moved


_ADAM = {
    "lr": ("number", REQUIRED, "learning_rate"), "betas": ("numbers", (0.9, 0.999)),
    "eps": ("number", 1e-8, "epsilon"), "amsgrad": ("flag", False), "maximize": ("flag", False),
}  # fmt: skip


@_operation("AdamW", inputs=2, **_ADAM, weight_decay=("number", 0.01), decoupled_weight_decay=("flag", True))
@_operation("Adam", inputs=2, **_ADAM, weight_decay=("number", 0.0), decoupled_weight_decay=("flag", False))
def _adam(x: Tensors, w: Weights, s: Any) -> Tensor:
    weight, grad = x
    grad = -grad if s.maximize else grad
    if s.decoupled_weight_decay:
        weight = weight * (1 - s.lr * s.weight_decay)
    else:
        grad = grad + s.weight_decay * weight
    first, second = (_one(w, port) for port in ("exp_avg", "exp_avg_sq"))
    first = (1 - s.betas[0]) * grad + (0.0 if first is None else s.betas[0] * first)
    second = (1 - s.betas[1]) * grad * grad + (0.0 if second is None else s.betas[1] * second)
    count = _one(w, "step")
    step = (
        torch.ones((), dtype=grad.dtype, device=grad.device) if count is None else count.reshape(()).to(grad.dtype) + 1
    )
    largest, most = second, _one(w, "max_exp_avg_sq")
    if s.amsgrad:
        largest = second if most is None else torch.maximum(most, second)
    states = {"exp_avg": first, "exp_avg_sq": second, "max_exp_avg_sq": largest, "step": step}
    if s.at in states:
        return states[s.at].clone()
    rate, root = s.lr / (1 - s.betas[0] ** step), (largest / (1 - s.betas[1] ** step)).sqrt()
    return weight - rate * first / (root + s.eps)


@_operation("RunningStatistics", inputs=2, momentum=("number", 0.1))
def _running(x: Tensors, w: Weights, s: Any) -> Tensor:
    """A batch norm's buffer after the step, from what it was and from what the norm read."""
    before, read = x
    over = [0, *range(2, read.dim())]
    batch = read.var(over, unbiased=True) if s.at == "running_var" else read.mean(over)
    return (1 - s.momentum) * before + s.momentum * batch
