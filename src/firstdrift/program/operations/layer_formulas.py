"""Layers with weights: products, convolutions, recurrent networks and norms."""

# mypy: disable-error-code="no-any-return"
# Settings are of any type, and so is what is computed with them.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..interpreter import NotReplayableError
from .op_table import BY_SHAPE, REQUIRED, Tensors, Weights, both_ends, capped, each, entry, plus, wide

_EPS = ("number", 1e-5, "epsilon", "variance_epsilon")
MOST_STRIDE = 1024  # that is looked for where none was recorded


@entry("Linear", "Dense", "InnerProduct", "FullyConnected", "FC", softcap=("number", BY_SHAPE))
def _linear(x: Tensors, w: Weights, s: Any) -> Tensor:
    """`x @ weight.T + bias`; several weights are one, their outputs behind each other."""
    weight = w["weight"]
    if s.kernel:  # flax and keras store it the other way round
        return capped(plus(x[0] @ weight, w.get("bias")), s.softcap)
    return capped(functional.linear(x[0], weight, w.get("bias")), s.softcap)


@entry("Gemm", inputs=0, alpha=("number", 1.0), beta=("number", 1.0), transA=("flag", False), transB=("flag", False))
def _gemm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """ONNX's: `alpha A B + beta C`, of tensors or weights."""
    matrices = [*x, *w.all.get("weight", []), *w.all.get("bias", [])]
    turned = zip(matrices, (s.transA, s.transB), strict=False)
    a, b = (matrix.transpose(-1, -2) if is_turned else matrix for matrix, is_turned in turned)
    made = s.alpha * (a @ b)
    return made if len(matrices) < 3 else made + s.beta * matrices[2]


@entry("MatMul", "bmm", "mm", inputs=0)
def _matmul(x: Tensors, w: Weights, s: Any) -> Tensor:
    """The product of two tensors, or of one with a weight stored as (in, out)."""
    a, b = [*x, *w.all.get("weight", [])]
    return plus(a @ b, w.get("bias"))


@entry("BiasAdd")
def _bias_add(x: Tensors, w: Weights, s: Any) -> Tensor:
    return x[0] + w["bias"]


@entry("Embedding", "Gather", scale=("number", 1.0))
def _embedding(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Rows of a table, times a scale."""
    if x[0].is_complex():
        raise NotReplayableError("a complex number is no row of a table")
    rows = functional.embedding(x[0].long(), w["weight"])
    return rows if s.scale == 1.0 else rows * s.scale


@entry("Conv1d", "Conv2d", "Conv3d", "Conv", stride=("sizes", BY_SHAPE, "strides"),
    padding=("padding", BY_SHAPE, "pads"), dilation=("sizes", (1,), "dilations"), groups=("whole", 1, "group"),
    padding_mode=("word", "zeros"), auto_pad=("word", "NOTSET"),
)  # fmt: skip
def _conv(x: Tensors, w: Weights, s: Any) -> Tensor:
    """A convolution; padding that was not recorded is what the shapes leave."""
    weight, bias = w["weight"], w.get("bias")
    if weight.dim() == 2:  # GPT-2's Conv1D is a linear layer with its weight the other way round
        return plus(x[0] @ weight, bias)
    axes = weight.dim() - 2
    dilation = each(s.dilation, axes)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    stride, before, behind = _window(x[0].shape[2:], s.shape[2:], reach, s.stride, s.padding, s.auto_pad)
    padded, inside = x[0], before
    if before != behind or s.padding_mode != "zeros":
        padded, inside = _padded(x[0], before, behind, s.padding_mode), [0] * axes
    return torch.convolution(padded, weight, bias, stride, inside, dilation, False, [0] * axes, s.groups)


@entry("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "ConvTranspose",
    stride=("sizes", (1,), "strides"), padding=("sizes", (0,), "pads"), dilation=("sizes", (1,), "dilations"),
    output_padding=("sizes", (0,)), groups=("whole", 1, "group"),
)  # fmt: skip
def _conv_transposed(x: Tensors, w: Weights, s: Any) -> Tensor:
    weight = w["weight"]
    axes = weight.dim() - 2
    stride, padding, dilation, more = (each(one, axes) for one in (s.stride, s.padding, s.dilation, s.output_padding))
    padding = both_ends(padding, axes)
    return torch.convolution(x[0], weight, w.get("bias"), stride, padding, dilation, True, more, s.groups)


def _padded(x: Tensor, before: Sequence[int], behind: Sequence[int], mode: str) -> Tensor:
    """A tensor with a border, of zeros or of copies."""
    if mode != "circular":
        sides = [side for pair in zip(reversed(before), reversed(behind), strict=True) for side in pair]
        return functional.pad(x, sides, "constant" if mode == "zeros" else mode)
    for axis, (first, last) in enumerate(zip(before, behind, strict=True), 2):
        size = x.shape[axis]
        x = torch.cat((x.narrow(axis, size - first, first), x, x.narrow(axis, 0, last)), axis)
    return x


def _window(
    size: Sequence[int], found: Sequence[int], reach: Sequence[int], stride: Any, padding: Any, auto: str
) -> tuple[list[int], list[int], list[int]]:
    """Stride, and padding before and behind, as recorded or as the shapes leave it."""
    axes = len(reach)
    if len(size) != axes or len(found) != axes:
        raise NotReplayableError(f"its window has {axes} axes, its input {len(size)} and its output {len(found)}")
    steps = [None] * axes if stride is None else each(stride, axes)
    word = padding.lower() if isinstance(padding, str) else {"SAME_UPPER": "same", "VALID": "valid"}.get(auto)
    if word == "same" or (padding is None and word is None):
        solved = [_solved(*one) for one in zip(size, found, reach, steps, strict=True)]
        return [one[0] for one in solved], [one[1] for one in solved], [one[2] for one in solved]
    sides = [0] * axes if word == "valid" else each(padding, axes)
    before, behind = (sides[:axes], sides[axes:]) if len(sides) == 2 * axes else (sides, sides)
    return [1 if step is None else step for step in steps], before, behind


def _solved(size: int, found: int, reach: int, stride: int | None) -> tuple[int, int, int]:
    """The stride and the least padding that make this size; one that is odd has its larger half behind."""
    for step in [stride] if stride is not None else [1, *range(2, min(MOST_STRIDE, size // max(1, found) + 2))]:
        if step < 1:
            break
        total = max(0, (found - 1) * step + reach - size)
        if total < reach and (size + total - reach) // step + 1 == found:
            return step, total // 2, total - total // 2
    raise NotReplayableError(f"no window of {reach} makes {found} of {size}")


def _recurrent(kind: str) -> None:
    @entry(
        kind, inputs=0, outputs=3, hidden_size=("whole", REQUIRED), num_layers=("whole", 1),
        bidirectional=("flag", False), batch_first=("flag", False), nonlinearity=("word", "tanh"),
        proj_size=("whole", 0),
    )  # fmt: skip
    def network(x: Tensors, w: Weights, s: Any) -> Tensor:
        """From no state, or from those given behind the sequence; `at` chooses output, last state or last cell."""
        if s.proj_size:
            raise NotReplayableError("projections of recurrent networks are not in the library")
        if f"weight_ih_l{s.num_layers - 1}" not in w:
            raise NotReplayableError(f"num_layers is {s.num_layers}, and there are no weights of the last of them")
        ways = 2 if s.bidirectional else 1
        ends = [f"_l{layer}{way}" for layer in range(s.num_layers) for way in ("", "_reverse")[:ways]]
        biased = "bias_ih_l0" in w
        parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if biased else 2]
        flat = [w[part + end] for end in ends for part in parts]
        batch = x[0].shape[0 if s.batch_first else 1]
        none = x[0].new_zeros(s.num_layers * ways, batch, s.hidden_size)
        how = (flat, biased, s.num_layers, 0.0, False, s.bidirectional, s.batch_first)
        if kind == "LSTM":
            return torch.lstm(x[0], list(x[1:3]) if len(x) > 2 else [none, none], *how)[s.at]
        run = torch.gru if kind == "GRU" else torch.rnn_relu if s.nonlinearity == "relu" else torch.rnn_tanh
        return run(x[0], x[1] if len(x) > 1 else none, *how)[s.at]


_recurrent("LSTM")
_recurrent("GRU")
_recurrent("RNN")


@entry("LayerNorm", "LayerNormalization", eps=_EPS, axes=("whole", BY_SHAPE))
def _layer_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Over the axes that the weight has, else over the last."""
    weight = w.get("weight")
    count = s.axes or (1 if weight is None else weight.dim())
    return functional.layer_norm(x[0], x[0].shape[-count:], weight, w.get("bias"), s.eps)


@entry(
    "RMSNorm",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    eps=("number", REQUIRED, *_EPS[2:]),
    offset=("number", 0.0),
)
def _rms_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """`x / rms(x) * (offset + weight)`; where an offset is added, rounding comes last."""
    return rms(x[0], w.get("weight"), s.eps, s.offset)


def rms(x: Tensor, weight: Tensor | None, eps: float, offset: float) -> Tensor:
    """`x / rms(x) * (offset + weight)`, computed in float32 at least."""
    values = x.to(wide(x.dtype))
    over = list(range(-(1 if weight is None else weight.dim()), 0))
    normed = values * torch.rsqrt((values * values).mean(over, keepdim=True) + eps)
    if weight is None:
        return normed.to(x.dtype)
    if offset:
        return (normed * (offset + weight.to(normed.dtype))).to(x.dtype)
    return weight * normed.to(x.dtype)


@entry("AddNorm", inputs=2, eps=("number", REQUIRED), offset=("number", 0.0))
def _add_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """A residual stream to which the RMS norm of the first tensor is added, as in Gemma 2."""
    return x[1] + rms(x[0], w["weight"], s.eps, s.offset)


@entry(
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNorm", "BatchNormalization", eps=_EPS,
    training=("flag", False, "training_mode"),
)  # fmt: skip
def _batch_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """By channel, with the running statistics; in training, or where there are none, with the batch's."""
    weight, bias = w.get("weight"), w.get("bias")
    if s.training or "running_mean" not in w:
        return functional.batch_norm(x[0], None, None, weight, bias, True, 0.0, s.eps)
    shape = [1, -1, *[1] * (x[0].dim() - 2)]
    made = (x[0] - w["running_mean"].view(shape)) * torch.rsqrt(w["running_var"] + s.eps).view(shape)
    made = made if weight is None else made * weight.view(shape)
    return made if bias is None else made + bias.view(shape)


@entry("GroupNorm", "GroupNormalization", num_groups=("whole", REQUIRED), eps=_EPS)
def _group_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    return functional.group_norm(x[0], s.num_groups, w.get("weight"), w.get("bias"), s.eps)


@entry("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "InstanceNormalization", eps=_EPS)
def _instance_norm(x: Tensors, w: Weights, s: Any) -> Tensor:
    """By channel of each sample: a group norm with a group a channel."""
    return functional.group_norm(x[0], x[0].shape[1], w.get("weight"), w.get("bias"), s.eps)
