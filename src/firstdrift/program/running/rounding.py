"""The rounding of correct code, drawn at random: a replay in float64 whose every operation is off as it may be off.

What an operation gives is moved by the error that computing it in the program's dtype makes, drawn anew for each seed:

- Elementwise, a number is rounded once: by up to half a step of its dtype, which is u times the power of two below it,
  u being the unit roundoff; over numbers of all sizes 0.42 u of themselves, in the root mean square.
- A sum of n terms is rounded n times on its way. Added one by one, in any order, its error is 0.42 u times the root of
  n (S^2/3 + Q/6) + Q, where S is the sum and Q the sum of its terms' squares. Q is the same operation on squares. Plain
  sums are also added up in the order in which their terms lie.
- A larger operation (a norm, a softmax, attention) is opened into such operations. Inside, 16-bit formats are added up
  in float32; attention alone rounds its scores and weights as it stores them.
- What only moves numbers rounds nothing, unless it ends in a shorter dtype that has them not. Whole numbers are never
  moved, and a decision that the program records as such is that of the unmoved run.

An operation that nobody here knows is run on what it reads moved by one rounding each.

A sum of what is the same for every seed is added up once, and its error drawn for each (Unmoved).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ...core.dtypes import UNIT_ROUNDOFF
from ...kernels import noises
from ..calls import Call, Leaf, Ref, Step, Type, reads
from ..cuts import type_of
from ..op_facts import facts_of, written_by
from .allowed import operation
from .opened import opened
from .scalars import Scalars

aten = torch.ops.aten

ROUNDED = 0.42  # of a unit roundoff: the error of one rounding, in the root mean square over numbers of all sizes
STEP = 2.0  # unit roundoffs of a power of two, from one number of a dtype to the next
FUNCTIONS = 2.0  # times as far off is a function of one number that a library computes
FAST = 4.0  # times as far off is one inside a larger kernel, which may approximate it
TAIL = 2.0  # times one rounding of 1, an error function is off by there, also where it is small: 1 less its tail
BLOCKS = 8  # of the terms of a product, after each of which its sum is looked at
SPLIT = 2  # parts in which a sum of a 16-bit format may be stored before they are added: half of its terms are in one

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
_ON_GRID = JUMPING - {"fake_quantize_per_tensor_affine"}
_ADDING = frozenset({"index_put", "index_put_", "_unsafe_index_put"})  # which add up what meets, if they are told to
_SUMMING = ("reduce", "value_reduce")  # overloads that compute
# Elementwise arithmetic that a processor rounds right; other functions are a library's.
_EXACT = frozenset({"add", "sub", "rsub", "mul", "div", "sqrt", "reciprocal", "square"})
# What code may write in several steps, each of which is stored: functions that cancel on the way, products with a bias.
_COMPOSED = frozenset({
    "gelu", "gelu_backward", "silu", "silu_backward", "softplus", "softplus_backward", "mish", "mish_backward", "elu",
    "elu_backward", "hardswish", "hardswish_backward", "hardsigmoid", "hardsigmoid_backward", "glu", "glu_backward",
    "log_sigmoid_forward", "log_sigmoid_backward", "logit", "logit_backward", "tanh_backward", "sigmoid_backward",
    "celu", "selu", "softshrink", "tanh", "binary_cross_entropy", "huber_loss", "smooth_l1_loss", "mse_loss",
    "xlogy", "sinc",
})  # fmt: skip
_IN_STEPS = _COMPOSED | {"addmm", "baddbmm", "addmv", "convolution", "_softmax", "_softmax_backward_data"}
# Sums of products, or of numbers: the same operation on squares gives the squares of their terms, added up.
_SUMS = frozenset({
    "mm", "bmm", "mv", "dot", "vdot", "addbmm", "convolution", "convolution_backward", "sum",
    "mean", "cumsum", "avg_pool1d", "avg_pool2d", "avg_pool3d", "avg_pool2d_backward", "avg_pool3d_backward",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
    "embedding_dense_backward", "embedding_renorm", "index_add", "index_add_", "scatter_add", "scatter_add_",
    "_unsafe_index_put", "index_put", "index_put_", "_euclidean_dist", "trace", "nansum", "col2im", "im2col",
    "max_pool2d_with_indices_backward", "_index_put_impl_", "slice_backward", "select_backward", "embedding_bag",
})  # fmt: skip
_MEANS = frozenset({"mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"})
# Sums that kernels keep in the dtype of their results while they grow, 16-bit formats included.
_GROWN_AS_STORED = frozenset({
    "native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward", "index_add", "index_put",
    "_fused_rms_norm_backward", "embedding_dense_backward", "scatter_add", "_index_put_impl", "_unsafe_index_put",
})  # fmt: skip
_ATTENTION = ("_scaled_dot_product", "_efficient_attention", "_flash_attention")
_LONG = UNIT_ROUNDOFF["f32"]  # in which shorter formats are computed with inside an operation
_DOUBLE = UNIT_ROUNDOFF["f64"]  # in which all of this is computed
_HELD = {  # the numbers that the dtype of a unit roundoff has
    UNIT_ROUNDOFF["f32"]: noises.format_of(np.float32), UNIT_ROUNDOFF["bf16"]: noises.format_of(ml_dtypes.bfloat16),
    UNIT_ROUNDOFF["f16"]: noises.format_of(np.float16),
}  # fmt: skip
# Absolute errors that a format may make next to zero: half its smallest step, or its smallest normal number where
# processors may flush what is below that.
_LEAST = {
    UNIT_ROUNDOFF["f16"]: 2.0**-25, UNIT_ROUNDOFF["f8e4m3fn"]: 2.0**-10, UNIT_ROUNDOFF["f8e5m2"]: 2.0**-17,
    UNIT_ROUNDOFF["bf16"]: 2.0**-126, UNIT_ROUNDOFF["f32"]: 2.0**-126,
}  # fmt: skip
_RESULTS = 1 << 20  # where the numbers of results begin, behind those of what is read
_UNMOVED_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Sum:
    """What a sum gave, and how far it may be off, in the root mean square; None for what is no float."""

    total: Any
    error: torch.Tensor | None

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.total, self.error) if isinstance(tensor, torch.Tensor))


class Unmoved:
    """What is the same for every seed of a step, while it is small: what it starts from, what it decides, and the sums
    of what was not moved. Runs share one that differ in their seeds alone, and start from nothing that is moved."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._found: dict[Hashable, Any] = {}
        self._left = _UNMOVED_BYTES

    def sums(self, node: int, at: int, make: Callable[[], list[Sum]]) -> list[Sum]:
        """Those of an operation inside a node, made if nobody has made them."""
        found: list[Sum] = self._kept((node, at), make, lambda sums: sum(one.nbytes for one in sums))
        return found

    def given(self, ref: Ref, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A recorded tensor, as runs read it."""
        found: torch.Tensor = self._kept(ref, make, lambda tensor: tensor.nbytes)
        return found

    def decided(self, make: Callable[[], Mapping[Ref, torch.Tensor]]) -> Mapping[Ref, torch.Tensor]:
        """What is decided on the way."""
        found: Mapping[Ref, torch.Tensor] = self._kept(
            "decided", make, lambda tensors: sum(tensor.nbytes for tensor in tensors.values())
        )
        return found

    def _kept(self, key: Hashable, make: Callable[[], Any], size_of: Callable[[Any], int]) -> Any:
        if key in self._found:
            return self._found[key]
        found = make()
        size = size_of(found)
        if size <= self._left:
            self._left -= size
            self._found[key] = found
        return found


@dataclass(frozen=True, slots=True)
class Shake:
    """By which numbers a run is moved; which of the tensors that it starts from are
    known to the last digit; a unit roundoff that nothing is finer than; which result is not rounded as it is stored,
    because whoever asks for it does so; how many roundings each one is; whether a run decides for itself; and what it
    shares with runs of other seeds, which only one may that is `steady` all over."""

    seed: int
    steady: frozenset[Ref] = frozenset()
    coarsest: float = 0.0
    target: Ref | None = None
    times: float = 1.0
    free: bool = False
    unmoved: Unmoved | None = None


class Shaking:
    """The rounding of one seed: the same on every machine."""

    def __init__(self, step: Step, shake: Shake) -> None:
        self._step = step
        self._shake = shake
        self._open = frozenset() if shake.target is None else _handed_on_from(step, shake.target)
        # A run of part of the samples is one of another step.
        self.unmoved = shake.unmoved if shake.unmoved is not None and shake.unmoved.step is step else None
        self._roundings: dict[int, Rounding] = {}
        self._is_same: dict[Ref, bool] = dict.fromkeys(shake.steady, True)
        self._scalars = Scalars(step, shake.seed)

    def given(self, ref: Ref, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A recorded tensor; more digits may have been computed with than were recorded."""
        if self.unmoved is not None:
            return self.unmoved.given(ref, make)
        unit = 0.0 if ref in self._shake.steady else self._unit(type_of(self._step, ref))
        moved: torch.Tensor = _moved(make(), unit, self._key(ref.node, ref.at))
        return moved

    def _unit(self, type_: Type | None) -> float:
        unit = _unit(type_)
        return max(unit, self._shake.coarsest) * self._shake.times if unit else 0.0

    def scalars(self, number: int, item: Any) -> Any:
        """Arguments of a call; if it is an optimizer's, with its constants rounded: no format is too short to derive
        them in float32."""
        call = self._step.nodes[number]
        if not isinstance(call, Call) or call.part != "optimizer":
            return item
        unit = max(map(self._unit, call.results), default=0.0)
        return self._scalars.moved(item, min(unit, _LONG * self._shake.times), number) if unit >= _LONG else item

    def around(self, number: int, func: Any) -> Rounding:
        """What a call is made in."""
        call = self._step.nodes[number]
        assert isinstance(call, Call)
        unit = max(map(self._unit, call.results), default=0.0)
        shorter = unit > min((self._unit(type_of(self._step, ref)) for ref in reads(call)), default=1.0)
        is_open = any(Ref(number, at) in self._open for at in range(len(call.results)))
        long = _LONG * self._shake.times
        sums = None
        if self.unmoved is not None and call.part != "optimizer" and all(map(self._is_unmoved, reads(call))):
            sums = partial(self.unmoved.sums, number)
        last = min(unit, long) if is_open else unit
        rounding = Rounding(func, unit, last, long, shorter, partial(self._key, number), sums)
        if self.unmoved is not None:
            self._roundings[number] = rounding
        return rounding

    def _is_unmoved(self, ref: Ref) -> bool:
        """Whether a value is the same for every seed: given, or made of such values by a call that drew nothing."""
        if ref not in self._is_same:
            node = self._step.nodes[ref.node]
            drew = ref.node in self._roundings and self._roundings[ref.node].has_drawn
            self._is_same[ref] = isinstance(node, Leaf) or (not drew and all(map(self._is_unmoved, reads(node))))
        return self._is_same[ref]

    def _key(self, node: int, at: int) -> int:
        return noises.key_of(self._shake.seed, node, at)


class Rounding(TorchDispatchMode):
    """Inside, what operations give is rounded at random. `unit` is that of the results of the one call that is made
    here, `last` the one by which they are rounded in the end, `long` the one that shorter formats compute with inside,
    and `shorter` says that it casts; what it is opened into may round finer. Where nothing that the call reads was
    moved, `sums` keeps the sums of that."""

    def __init__(
        self, func: Any, unit: float, last: float, long: float, shorter: bool, key: Callable[[int], int],
        sums: Callable[[int, Callable[[], list[Sum]]], list[Sum]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._func, self._shorter = func, shorter
        self._unit, self._last, self._long = unit, last, long
        self._key = key
        self._sums = sums
        self._unmoved: dict[int, torch.Tensor] | None = None  # tensors by their identity, of which this holds on to
        self._grown = unit if _plain(func) in _GROWN_AS_STORED else min(unit, long)  # in which sums grow
        in_steps = _plain(func) in _IN_STEPS or func._opname.startswith(_ATTENTION)
        self._inner = self._unit if in_steps else min(self._unit, long)
        self._drawn = 0
        self._is_outer = True  # the next operation is the call itself, unless torch opens it unasked

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing compiles here; being kept from it would load the compiler, and ask it at every operation."""
        return False

    @property
    def has_drawn(self) -> bool:
        """Whether anything was moved."""
        return self._drawn > 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation: opened, or made and rounded."""
        kwargs = kwargs or {}
        if self._unit == 0.0:
            return func(*args, **kwargs)
        if self._unmoved is None:  # what the first operation reads is what the call reads
            self._unmoved = {} if self._sums is None else {id(tensor): tensor for tensor in _tensors((args, kwargs))}
        if func._schema.is_mutable:
            self._unmoved = {}  # views of what is written to may be among them
        if func is not self._func or not self._is_outer:
            return self._made(func, args, kwargs, self._inner)
        self._is_outer = False
        return self._made(func, args, kwargs, self._last)

    def stored(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a call gave; if torch opened it unasked, rounded as it is stored."""
        self._unmoved = {}
        if not self._is_outer or self._inner >= self._last:
            return list(results)
        return [_moved(result, self._last, self._next()) for result in results]

    def _made(self, func: Any, args: Any, kwargs: Any, unit: float) -> Any:
        if (terms := _terms_of(func, args, kwargs)) is not None:
            return self._added(func, args, kwargs, terms, unit)
        if _is_sum(func, args, kwargs, in_steps=unit > self._long):
            return self._summed(func, args, kwargs, unit)
        if moves(func) or func._opname in _ON_GRID:
            found = func(*args, **kwargs)
            if func is self._func and self._shorter:
                return self._rounded(func, args, kwargs, found, unit, held=_HELD.get(unit))
            return self._handed_on(func, args, kwargs, found)
        if _is_function(func):
            found = func(*args, **kwargs)
            if _plain(func) in _EXACT:
                return self._rounded(func, args, kwargs, found, unit, held=_HELD.get(unit))
            if _plain(func) == "erf" and func is not self._func and unit <= self._long:
                return self._approximated(found, unit)
            times = 1.0 if unit > self._long else FUNCTIONS if func is self._func else FAST
            return self._rounded(func, args, kwargs, found, unit, times)
        found = self._opened(func, args, kwargs)
        if found is None:
            return self._unknown(func, args, kwargs, unit)
        return self._rounded(func, args, kwargs, found, unit) if unit > self._inner else found

    def _approximated(self, found: torch.Tensor, unit: float) -> torch.Tensor:
        """An error function inside a larger kernel: off by as much anywhere, in part to the same side everywhere."""
        for tensor in (torch.ones_like(found), torch.ones((), dtype=found.dtype)):
            found = found + (_moved(tensor, unit, self._next(), TAIL) - 1)
        return found

    def _opened(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The results of an operation by way of others, each rounded; None where no way is known."""
        opener = _OPENERS.get(func) or decomposition_table.get(func)
        with self:
            if func._opname.startswith(_ATTENTION):
                found = opened(func, args, kwargs, is_missing=True)
            else:
                found = None if opener is None else opener(*args, **kwargs)
        return None if found is None else _as_returned(func, args, kwargs, found)

    def _summed(self, func: Any, args: Any, kwargs: Any, unit: float) -> Any:
        """A sum, rounded as it grows: 16-bit formats grow theirs in float32."""
        if self._sums is not None and self._is_unmoved(args, kwargs):
            sums = self._sums(self._drawn, lambda: self._added_up(func, args, kwargs, unit))
        else:
            sums = self._added_up(func, args, kwargs, unit)
        moved = [one.total if one.error is None else self._off(one.total, one.error, unit) for one in sums]
        found = sums[0].total if len(func._schema.returns) == 1 else tuple(one.total for one in sums)
        return _given_back(func, args, kwargs, found, moved)

    def _off(self, total: torch.Tensor, error: torch.Tensor, unit: float) -> Any:
        """A sum that is off by what it may be, as it is stored."""
        found = noises.scattered(_numbers(total), _numbers(error), self._next())
        return _moved(torch.from_numpy(found), unit, self._next()) if unit > self._long else torch.from_numpy(found)

    def _added_up(self, func: Any, args: Any, kwargs: Any, unit: float) -> list[Sum]:
        """What a sum gives, and how far that may be off."""
        squares = _listed(func(*_squared(args), **_squared(kwargs)))
        found = _listed(func(*args, **kwargs))
        sums = []
        for at, (total, terms) in enumerate(zip(found, squares, strict=True)):
            if not isinstance(total, torch.Tensor) or not total.is_floating_point():
                sums.append(Sum(total, None))
                continue
            count = _terms(func, args, kwargs, at, total)
            terms = terms / count if func._opname in _MEANS else terms
            variance = total * total
            if count > 1:
                variance = variance.mul_(count / 3).add_(terms, alpha=count / 6 + 1)
            for grown in (_grown(func, args, kwargs, at, total), _grown_in_blocks(func, args, at, count)):
                if grown is not None:
                    torch.maximum(variance, grown, out=variance)
            variance.mul_(min(max(unit, self._unit), self._grown) ** 2)
            if unit > self._long:
                variance.add_(terms, alpha=(unit / SPLIT) ** 2)
            sums.append(Sum(total, _root(variance.clamp_min_(0.0)).mul_(ROUNDED)))
        return sums

    def _is_unmoved(self, args: Any, kwargs: Any) -> bool:
        """Whether what an operation reads is the same for every seed."""
        known = self._unmoved or {}
        return bool(known) and all(id(tensor) in known for tensor in _tensors((args, kwargs)))

    def _handed_on(self, func: Any, args: Any, kwargs: Any, found: Any) -> Any:
        """What an operation gave that moves nothing: as unmoved as what it read."""
        if self._unmoved and self._is_unmoved(args, kwargs):
            self._unmoved.update((id(tensor), tensor) for tensor in _tensors(found))
        return found

    def _added(self, func: Any, args: Any, kwargs: Any, terms: Sequence[torch.Tensor], unit: float) -> Any:
        """Elementwise products that are added up: each is rounded before, however much of it cancels."""
        found = func(*args, **kwargs)
        for term in terms:
            off = _moved(term, max(unit, self._unit), self._next()) - term
            found = found.add_(off) if func._schema.is_mutable else found + off
        return self._rounded(func, args, kwargs, found, unit)

    def _unknown(self, func: Any, args: Any, kwargs: Any, unit: float) -> Any:
        """An operation of which nothing is known: what it reads is moved by a rounding, and what it gives."""

        def moved(item: Any) -> Any:
            return _moved(item, unit, self._next())

        args, kwargs = _mapped(args, moved), _mapped(kwargs, moved)
        return self._rounded(func, args, kwargs, func(*args, **kwargs), unit)

    def _rounded(
        self, func: Any, args: Any, kwargs: Any, found: Any, unit: float, times: float = 1.0,
        held: noises.Format | None = None,
    ) -> Any:  # fmt: skip
        """Every float that an operation gave or wrote, rounded; but for those that a format has as they are."""
        results = written_by(facts_of(func), args, kwargs) if func._schema.is_mutable else _listed(found)
        moved = [_moved(result, unit, self._next(), times, held) for result in results]
        return _given_back(func, args, kwargs, found, moved)

    def _next(self) -> int:
        self._drawn += 1
        return self._key(_RESULTS + self._drawn)


def _as_returned(func: Any, args: Any, kwargs: Any, found: Any) -> Any:
    """What an opened operation gives, as its schema says it; torch does not survive anything else. A kernel's own
    notes, which nobody else can make, are the kernel's, and so is what it was asked not to give; None where results are
    missing."""
    count, results = len(func._schema.returns), _listed(found)
    if count == 1:
        return results if isinstance(func._schema.returns[0].type, torch.ListType) else results[0]
    if any(result is None for result in results[:count]):
        results = [other if one is None else one for one, other in zip(results, func(*args, **kwargs), strict=False)]
    return tuple(results[:count]) if len(results) >= count else None


def _terms_of(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor] | None:
    """The products that an elementwise operation adds up; None for one that does not."""
    name, overload = func._opname.rstrip("_"), func._overloadname
    if name in ("add", "sub") and overload == "Tensor" and kwargs.get("alpha", 1) not in (1, 1.0):
        return [args[1] * kwargs["alpha"]]
    if name == "addcmul":
        return [args[1] * args[2] * kwargs.get("value", 1)]
    if name == "addcdiv":
        return [args[1] / args[2] * kwargs.get("value", 1)]
    if name == "lerp":
        return [args[0] * (1 - args[2]), args[1] * args[2]]
    return None


def _given_back(func: Any, args: Any, kwargs: Any, found: Any, moved: Sequence[Any]) -> Any:
    """Results in the place of those that an operation gave; in the tensors that it wrote to, if it did."""
    if not func._schema.is_mutable:
        return type(found)(moved) if isinstance(found, tuple | list) else moved[0]
    for tensor, other in zip(written_by(facts_of(func), args, kwargs), moved, strict=True):
        tensor.copy_(other)
    return found


def moves(func: Any) -> bool:
    """Whether an operation computes nothing: by its schema, by torch's tags, or because it is on the list."""
    tags = func.tags
    is_listed = func._opname in MOVING and func._overloadname not in _SUMMING
    return bool(func.is_view or is_listed or torch.Tag.view_copy in tags or torch.Tag.inplace_view in tags)


def decisions(step: Step, nodes: Sequence[int]) -> list[Ref]:
    """The results among nodes that are decided by floats: whole numbers, booleans, and what jumps."""
    found = []
    for number in nodes:
        call = step.nodes[number]
        if isinstance(call, Call) and any(_unit(type_of(step, ref)) for ref in reads(call)):
            jumps = call.op.split(".")[1] in JUMPING or call.kwargs.get("rounding_mode") is not None
            found += [Ref(number, at) for at, one in enumerate(call.results) if one and (jumps or not _unit(one))]
    return found


def is_kinked(call: Call) -> bool:
    """Whether an operation, or its derivative, has a kink on either side of which it does something else."""
    return call.op.split(".")[1].rstrip("_") in _KINKED


def _is_function(func: Any) -> bool:
    """Whether an operation is one function of each number, and not written by others."""
    is_elementwise = torch.Tag.pointwise in func.tags or func._opname.startswith("_foreach_")
    return is_elementwise and _plain(func) not in _COMPOSED


def _plain(func: Any) -> str:
    """The name of an elementwise operation, of one tensor or several, in place or not."""
    name: str = func._opname.removeprefix("_foreach_")
    return name.rstrip("_")


def _handed_on_from(step: Step, target: Ref) -> frozenset[Ref]:
    """A value, and those that it is as they are: moved, and nothing else."""
    found, waiting = set(), [target]
    while waiting:
        ref = waiting.pop()
        found.add(ref)
        call = step.nodes[ref.node]
        if isinstance(call, Call) and moves(operation(call.op)[0]):
            waiting += [read for read in reads(call) if read not in found]
    return frozenset(found)


def _is_sum(func: Any, args: Any, kwargs: Any, in_steps: bool) -> bool:
    """Whether an operation is one sum; a product with a bias is two where each is stored `in_steps`."""
    name = func._opname
    if name in _ADDING:
        accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        return bool(accumulates)
    if name in ("addmm", "baddbmm", "addmv") or (name == "convolution" and args[2] is not None):
        return not in_steps
    return name in _SUMS


def _moved(
    tensor: Any, unit: float, key: int, times: float = 1.0, held: noises.Format | None = None
) -> Any:  # fmt: skip
    """A tensor with every number rounded at random, but for those that `held` has; anything else as it is."""
    if not isinstance(tensor, torch.Tensor) or not unit or not tensor.numel():
        return tensor
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.resolve_conj())
        return torch.view_as_complex(_moved(parts, unit, key, times, held).contiguous())
    if not tensor.is_floating_point():
        return tensor
    # One number of memory is moved once, however often it is looked at.
    once = tensor[tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())]
    width = STEP * times * (1 if unit > _DOUBLE else 2)  # what is moved by half of its own step stays where it is
    found = noises.moved(_numbers(once), key, unit, width, _LEAST.get(unit, 0.0), held)
    return torch.from_numpy(found).expand(tensor.shape).contiguous()


def _numbers(tensor: torch.Tensor) -> Any:
    """The numbers of a tensor as the kernel takes them, in the order of its axes."""
    return tensor.detach().resolve_neg().double().contiguous().numpy()


def _where_finite(moved: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """What is infinite, or no number, stays what it is."""
    return torch.where(torch.isfinite(moved), moved, tensor)


def _terms(func: Any, args: Any, kwargs: Any, at: int, total: torch.Tensor | None) -> float:
    """How many terms a number that an operation gives is the sum of, from shapes alone; a product's by its flops."""
    tensors = [tensor for tensor in _tensors((args, kwargs)) if tensor.is_floating_point()]
    if not tensors:
        return 1.0
    name = func._opname
    if name == "convolution_backward":
        grad, _, weight = args[:3]
        summed = weight if at == 0 else grad
        return max(1.0, float(summed.numel()) / max(1, int(summed.shape[1])))
    if total is not None and func.overloadpacket in flop_registry:
        try:
            flops = flop_registry[func.overloadpacket](*args, **kwargs, out_val=total)
            return max(1.0, float(flops) / (2 * max(1, total.numel())))
        except (TypeError, ValueError, IndexError, AssertionError, AttributeError):
            pass
    if name == "cumsum":
        return float(tensors[0].shape[args[1]]) if tensors[0].ndim else 1.0
    largest = max(tensor.numel() for tensor in tensors)
    given = total.numel() if total is not None else largest
    if name in ("scatter_add", "scatter_add_", "index_add", "index_add_", "index_put", "index_put_",
                "_unsafe_index_put", "embedding_dense_backward"):  # fmt: skip
        return float(max(2, tensors[-1].numel() // max(1, tensors[-1].shape[-1] if tensors[-1].ndim else 1)))
    return max(1.0, largest / max(1, given))


def _grown(func: Any, args: Any, kwargs: Any, at: int, total: torch.Tensor) -> torch.Tensor | None:
    """The error of a sum whose terms are added one by one in the order in which they lie, squared, in roundings: a sum
    that cancels in the end may have been large before, and terms that are alike are all rounded the same way."""
    name, data = func._opname, args[0]
    if name == "convolution_backward" and at == 2:
        dims, count = [0, *range(2, data.ndim)], 1.0
    elif name in ("sum", "mean") and data.ndim and data.is_floating_point():
        asked = args[1] if len(args) > 1 else kwargs.get("dim")
        dims = list(range(data.ndim)) if asked in (None, []) else [asked] if isinstance(asked, int) else list(asked)
        count = float(prod(data.shape[one] for one in dims)) if name == "mean" else 1.0
    else:
        return None
    dims = [one % data.ndim for one in dims]
    kept = [number for number in range(data.ndim) if number not in dims]
    rows = data.permute(*kept, *dims).reshape(*(data.shape[number] for number in kept), -1)
    found = (rows.cumsum(-1) / count).square().sum(-1)
    added = np.add.accumulate(rows.numpy().astype(np.float32), axis=-1)[..., -1] if rows.shape[-1] else 0.0
    off = (torch.as_tensor(added, dtype=torch.float64) - rows.sum(-1)) / (count * ROUNDED * _LONG)
    found = torch.maximum(found, _where_finite(off, torch.zeros_like(off)).square())
    return found.reshape(total.shape)


def _grown_in_blocks(func: Any, args: Any, at: int, count: float) -> torch.Tensor | None:
    """The same of a sum of products, by what it has come to after each of several blocks of its terms: neighbouring
    terms are alike, so that a sum may wander further from zero than terms of random signs would take it."""
    size = _summed_first(func, args, at)
    if size is None or len(_slices(size)) < 2:
        return None
    blocks = _blocks(func, args, at)
    before = next(blocks)
    found, spare = before * before, torch.empty_like(before)
    for now in blocks:
        now += before
        torch.add(before, now, out=spare).mul_(before)  # a (a + b) + b^2
        found.add_(spare).addcmul_(now, now)
        before = now
    return found.mul_(count / len(_slices(size)) / 3)


def _summed_first(func: Any, args: Any, at: int) -> int | None:
    """How long the axis is that a sum of products sums first; None for what is none."""
    name = func._opname
    if name in ("mm", "bmm"):
        length: int = args[0].shape[-1]
        return length
    if name == "convolution" and not args[6] and args[8] == 1:
        return int(args[0].shape[1])
    if name == "convolution_backward" and not args[7] and args[9] == 1 and at < 2:
        return int(args[0].shape[1 - at])
    return None


def _blocks(func: Any, args: Any, at: int) -> Iterator[torch.Tensor]:
    """A sum of products as several, one for each of some blocks of the axis that it sums first."""
    name = func._opname
    if name == "mm":
        data, weight = args[:2]
        yield from (data[:, some] @ weight[some] for some in _slices(data.shape[1]))
    if name == "bmm":
        data, weight = args[:2]
        yield from (data[:, :, some] @ weight[:, some] for some in _slices(data.shape[2]))
    if name == "convolution":
        data, weight, _, *sizes = args
        yield from (func(data[:, some], weight[:, some], None, *sizes) for some in _slices(data.shape[1]))
    if name == "convolution_backward":
        gradient, data, weight, *sizes, _ = args
        if at == 0:
            some_of = [(gradient[:, some], data, weight[some]) for some in _slices(gradient.shape[1])]
        else:
            some_of = [(gradient[some], data[some], weight) for some in _slices(gradient.shape[0])]
        yield from (func(*some, *sizes, [at == 0, at == 1, False])[at] for some in some_of)


def _root(squares: torch.Tensor) -> torch.Tensor:
    """The roots of a few numbers, in this thread: torch's library wakes all others for them, and waits."""
    return torch.from_numpy(np.asarray(np.sqrt(squares.numpy())))


def _slices(size: int) -> list[slice]:
    """Blocks of an axis, none shorter than two."""
    step = max(2, -(-size // BLOCKS))
    return [slice(start, start + step) for start in range(0, size, step)]


def _unit(type_: Type | None) -> float:
    return 0.0 if type_ is None else UNIT_ROUNDOFF.get(type_.dtype, 0.0)


def _squared(item: Any) -> Any:
    """Arguments with every float tensor squared, and plain factors too."""
    return _mapped(item, lambda one: one * one if isinstance(one, torch.Tensor) and one.is_floating_point() else one)


def _mapped(item: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, Mapping):
        return {key: _mapped(one, change) for key, one in item.items()}
    return type(item)(_mapped(one, change) for one in item) if isinstance(item, tuple | list) else item


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def _tensors(item: Any) -> list[torch.Tensor]:
    return [tensor for tensor in _deep(item) if isinstance(tensor, torch.Tensor)]


def _deep(item: Any) -> list[Any]:
    if isinstance(item, Mapping):
        return [one for part in item.values() for one in _deep(part)]
    return [one for part in item for one in _deep(part)] if isinstance(item, tuple | list) else [item]


def _var_mean(data: torch.Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
              correction: Any = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    dims = list(range(data.ndim)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    count = prod(data.shape[one] for one in dims)
    fewer = correction if correction is not None else 1 if unbiased in (None, True) else 0
    mean = data.sum(dims, keepdim=True) / count
    off = data - mean
    var = (off * off).sum(dims, keepdim=True) / max(0, count - fewer)
    return (var, mean) if keepdim else (var.squeeze(dims), mean.squeeze(dims))


def _var(*args: Any, **kwargs: Any) -> torch.Tensor:
    return _var_mean(*args, **kwargs)[0]


def _layer_norm(
    data: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """As torch's own table has it, without the compiler that this loads."""
    dims = list(range(data.ndim - len(shape), data.ndim))
    var, mean = aten.var_mean.correction(data, dims, correction=0, keepdim=True)
    rstd = (var + eps).rsqrt()
    found = (data - mean) * rstd
    found = found if weight is None else found * weight
    return (found if bias is None else found + bias), mean, rstd


def _plus(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A product with an addend, in two steps as code may write it."""

    def added(addend: torch.Tensor, *factors: torch.Tensor, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
        found = product(*factors)
        found = found if alpha == 1 else found * alpha
        return found + (addend if beta == 1 else addend * beta)

    return added


def _convolution(
    data: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *sizes: Any
) -> torch.Tensor:  # fmt: skip
    found: torch.Tensor = aten.convolution(data, weight, None, *sizes)
    return found if bias is None else found + bias.reshape(-1, *[1] * (data.ndim - 2))


_OPENERS: dict[Any, Callable[..., Any]] = {
    **{getattr(aten.var_mean, one): _var_mean for one in aten.var_mean.overloads() if not one.endswith("out")},
    **{getattr(aten.var, one): _var for one in aten.var.overloads() if not one.endswith("out")},
    aten.native_layer_norm.default: _layer_norm,
    aten.addmm.default: _plus(aten.mm),
    aten.baddbmm.default: _plus(aten.bmm),
    aten.addmv.default: _plus(aten.mv),
    aten.convolution.default: _convolution,
    aten.tanh.default: lambda data: torch.sigmoid(data * 2) * 2 - 1,
}
