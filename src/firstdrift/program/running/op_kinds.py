"""What operations do, as far as rounding is concerned: move numbers, jump, add up, or compute one function of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...core.dtypes import UNIT_ROUNDOFF
from ..calls import Call, Ref, Step, Type, reads

# Operations that move numbers and compute none, beside views and what torch tags as copies of views.
MOVING = frozenset({
    "_reshape_copy", "_to_copy", "_unsafe_view", "as_strided_scatter", "block_diag", "broadcast_tensors", "cat",
    "clone", "concat", "concatenate", "constant_pad_nd", "contiguous", "copy", "copy_", "diagonal_scatter", "embedding",
    "empty_like", "fill", "fill_", "flip", "full_like", "gather", "index", "index_put", "index_put_", "index_select",
    "lift", "lift_fresh_copy", "masked_fill", "masked_fill_", "masked_scatter", "masked_scatter_", "masked_select",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "new_empty", "new_empty_strided", "new_full", "new_ones",
    "new_zeros", "ones_like", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "relu", "relu_", "repeat",
    "repeat_interleave", "replication_pad1d", "replication_pad2d", "replication_pad3d", "reshape", "roll", "rot90",
    "scatter", "scatter_", "select_scatter", "slice_scatter", "stack", "take", "to", "tril", "triu", "unsafe_chunk",
    "unsafe_split", "unsafe_split_with_sizes", "where", "zero",
    "zero_", "zeros_like", "_foreach_copy_", "_foreach_zero_", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
    "threshold", "threshold_backward", "neg", "neg_", "abs", "abs_", "clamp", "clamp_", "clamp_min", "clamp_max",
    "maximum", "minimum", "amax", "amin", "max", "min", "sort", "topk", "hardtanh", "hardtanh_",
})  # fmt: skip
# Operations that jump: a number next to a step must not be moved over it.
JUMPING = frozenset({
    "ceil", "ceil_", "fake_quantize_per_tensor_affine", "floor", "floor_", "floor_divide",
    "floor_divide_", "fmod", "fmod_", "frac", "frac_", "heaviside", "remainder", "remainder_", "round",
    "round_", "sgn", "sign", "sign_", "trunc", "trunc_",
})  # fmt: skip
_KINKED = frozenset({
    "abs", "amax", "amax_backward", "amin", "clamp", "clamp_max", "clamp_min", "clip", "elu_backward", "hardsigmoid",
    "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh", "hardtanh_backward", "leaky_relu",
    "leaky_relu_backward", "max", "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "maximum", "min",
    "minimum", "prelu", "relu", "sgn", "sign", "softshrink_backward", "threshold", "threshold_backward", "eq", "ge",
    "gt", "le", "lt", "ne", "where", "masked_fill", "bucketize", "searchsorted", "sort", "topk", "argmax", "argmin",
    "evenly_distribute_backward", "value_selecting_reduction_backward", "_cdist_backward", "median", "mode",
})  # fmt: skip
# Of these, what gives numbers that every format has: a number moved off zero would be on the other side of it.
ON_GRID = JUMPING - {"fake_quantize_per_tensor_affine"}
ADDING = frozenset({"index_put", "index_put_", "_unsafe_index_put"})  # which add up what meets, if they are told to
SUMMING = ("reduce", "value_reduce")  # overloads that compute
# Elementwise arithmetic that a processor rounds right; other functions are a library's.
EXACT = frozenset({"add", "sub", "rsub", "mul", "div", "sqrt", "reciprocal", "square"})
# What code may write in several steps, each of which is stored: functions that cancel on the way, products with a bias.
_COMPOSED = frozenset({
    "gelu", "gelu_backward", "silu", "silu_backward", "softplus", "softplus_backward", "mish", "mish_backward", "elu",
    "elu_backward", "hardswish", "hardswish_backward", "hardsigmoid", "hardsigmoid_backward", "glu", "glu_backward",
    "log_sigmoid_forward", "log_sigmoid_backward", "logit", "logit_backward", "tanh_backward", "sigmoid_backward",
    "celu", "selu", "softshrink", "tanh", "binary_cross_entropy", "huber_loss", "smooth_l1_loss", "mse_loss",
    "xlogy", "sinc",
})  # fmt: skip
IN_STEPS = _COMPOSED | {"addmm", "baddbmm", "addmv", "convolution", "_softmax", "_softmax_backward_data"}
# Sums of products, or of numbers: the same operation on squares gives the squares of their terms, added up.
_SUMS = frozenset({
    "mm", "bmm", "mv", "dot", "vdot", "addbmm", "convolution", "convolution_backward", "sum",
    "mean", "cumsum", "avg_pool1d", "avg_pool2d", "avg_pool3d", "avg_pool2d_backward", "avg_pool3d_backward",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
    "embedding_dense_backward", "embedding_renorm", "index_add", "index_add_", "scatter_add", "scatter_add_",
    "_unsafe_index_put", "index_put", "index_put_", "_euclidean_dist", "trace", "nansum", "col2im", "im2col",
    "max_pool2d_with_indices_backward", "_index_put_impl_", "slice_backward", "select_backward", "embedding_bag",
})  # fmt: skip
MEANS = frozenset({"mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"})
# Sums that kernels keep in the dtype of their results while they grow, 16-bit formats included.
GROWN_AS_STORED = frozenset({
    "native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward", "index_add", "index_put",
    "_fused_rms_norm_backward", "embedding_dense_backward", "scatter_add", "_index_put_impl", "_unsafe_index_put",
})  # fmt: skip
ATTENTION = ("_scaled_dot_product", "_efficient_attention", "_flash_attention")


def moves(func: Any) -> bool:
    """Whether an operation computes nothing: by its schema, by torch's tags, or because it is on the list."""
    tags = func.tags
    is_listed = func._opname in MOVING and func._overloadname not in SUMMING
    return bool(func.is_view or is_listed or torch.Tag.view_copy in tags or torch.Tag.inplace_view in tags)


def decisions(step: Step, nodes: Sequence[int]) -> list[Ref]:
    """The results among nodes that are decided by floats: whole numbers, booleans, and what jumps."""
    found = []
    for number in nodes:
        call = step.nodes[number]
        if isinstance(call, Call) and any(unit_of(step.type_of(ref)) for ref in reads(call)):
            jumps = call.op.split(".")[1] in JUMPING or call.kwargs.get("rounding_mode") is not None
            found += [Ref(number, at) for at, one in enumerate(call.results) if one and (jumps or not unit_of(one))]
    return found


def is_kinked(call: Call) -> bool:
    """Whether an operation, or its derivative, has a kink on either side of which it does something else."""
    return call.op.split(".")[1].rstrip("_") in _KINKED


def is_function(func: Any) -> bool:
    """Whether an operation is one function of each number, and not written by others."""
    is_elementwise = torch.Tag.pointwise in func.tags or func._opname.startswith("_foreach_")
    return is_elementwise and plain_name(func) not in _COMPOSED


def plain_name(func: Any) -> str:
    """The name of an elementwise operation, of one tensor or several, in place or not."""
    name: str = func._opname.removeprefix("_foreach_")
    return name.rstrip("_")


def is_sum(func: Any, args: Any, kwargs: Any, in_steps: bool) -> bool:
    """Whether an operation is one sum; a product with a bias is two where each is stored `in_steps`."""
    name = func._opname
    if name in ADDING:
        accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        return bool(accumulates)
    if name in ("addmm", "baddbmm", "addmv") or (name == "convolution" and args[2] is not None):
        return not in_steps
    return name in _SUMS


def unit_of(type_: Type | None) -> float:
    return 0.0 if type_ is None else UNIT_ROUNDOFF.get(type_.dtype, 0.0)
