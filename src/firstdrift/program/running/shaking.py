"""The noise of a cut, measured: every number is moved within its rounding, by numbers that a seed decides.

A tensor is multiplied elementwise by 1 + u*xi, where u is the unit roundoff of the dtype that the program has there
and xi is uniform in [-1, 1]. What a call reads is shaken, and what it gives. A call that only moves numbers (a view by
its schema, or one of MOVING) shakes nothing, but for a cast to a shorter dtype, whose result is rounded. Whole numbers
and booleans are never shaken, and those that come out of floats are the unshaken run's, as are the results of JUMPING:
a decision that tips over is no noise.

The spread of a few runs is the noise of a cut whose sums are added well; one that computes bfloat16 in float32 inside
is better. A kernel that adds n terms one by one is worse by the root of n: a `serial` run shakes what a sum reads and
gives by as much. Given tensors that are known to the last digit are `steady`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import flop_registry

from ...dtypes import UNIT_ROUNDOFF
from ..calls import Call, Ref, Step, Type, reads
from ..cuts import type_of
from .torch_dtypes import TORCH_DTYPES

# Operations that move numbers and compute none, beside views and what torch tags as copies of views.
MOVING = frozenset({
    "_reshape_copy", "_to_copy", "_unsafe_view", "as_strided_scatter", "block_diag", "broadcast_tensors", "cat",
    "clone", "concat", "concatenate", "constant_pad_nd", "copy", "copy_", "diagonal_scatter", "embedding",
    "empty_like", "fill", "fill_", "flip", "full_like", "gather", "index", "index_put", "index_put_", "index_select",
    "lift", "lift_fresh_copy", "masked_fill", "masked_fill_", "masked_scatter", "masked_scatter_", "masked_select",
    "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones_like", "reflection_pad1d",
    "reflection_pad2d", "reflection_pad3d", "repeat", "repeat_interleave", "replication_pad1d", "replication_pad2d",
    "replication_pad3d", "roll", "rot90", "scatter", "scatter_", "select_scatter", "slice_scatter", "stack", "take",
    "to", "tril", "triu", "where", "zero", "zero_", "zeros_like", "_foreach_copy_", "_foreach_zero_", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle",
})  # fmt: skip
# Float operations that jump: a number next to a step must not be shaken over it.
JUMPING = frozenset({
    "ceil", "ceil_", "fake_quantize_per_tensor_affine", "floor", "floor_", "floor_divide",
    "floor_divide_", "fmod", "fmod_", "frac", "frac_", "heaviside", "remainder", "remainder_", "round",
    "round_", "sgn", "sign", "sign_", "trunc", "trunc_",
})  # fmt: skip
_ADDING = {"index_put", "index_put_", "_unsafe_index_put"}  # which add up what meets, if they are told to
_SUMMING = ("reduce", "value_reduce")  # overloads that compute
# Operations that sum along the last axis of what they read, and give as many numbers.
_ALONG_ROWS = ("softmax", "layer_norm", "rms_norm", "logsumexp", "cumsum", "nll_loss", "cross_entropy")
# A sum of n terms that is rounded after every addition is off by 0.31 * sqrt(n) roundings in the root mean square, and
# a number that moves evenly up to sqrt(3) times as far is, too.
SERIAL = 0.31 * sqrt(3)
_FINEST = UNIT_ROUNDOFF["f64"]
_RESULTS = 1 << 32  # where the positions of results begin, behind those of arguments


@dataclass(frozen=True, slots=True)
class Shake:
    """By which numbers a run is shaken, and how far."""

    seed: int
    serial: bool = False
    steady: frozenset[Ref] = frozenset()


class Shaking:
    """The numbers of one seed: the same on every machine."""

    def __init__(self, step: Step, shake: Shake) -> None:
        self._step = step
        self._seed, self._serial, self._steady = shake.seed, shake.serial, shake.steady

    def reading(self, number: int, func: Any, value: Callable[[Ref], torch.Tensor]) -> Callable[[Ref], torch.Tensor]:
        """How a call reads: a value that it is given twice is one value."""
        if self._moves(number, func):
            return value
        position = {ref: at for at, ref in reversed(list(enumerate(reads(self._step.nodes[number]))))}
        last = len(position)  # of what a call does not read itself, but the function in whose place it stands
        times = self._times(number, func)

        def read(ref: Ref) -> torch.Tensor:
            unit = 0.0 if ref in self._steady else times * _unit(type_of(self._step, ref))
            return self._shaken(value(ref), unit, number, position.get(ref, last))

        return read

    def results(self, number: int, func: Any, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a call gives, rounded at random."""
        call = self._step.nodes[number]
        assert isinstance(call, Call)
        rounds = self._casts if self._moves(number, func) else lambda call, type_, tensor: True
        times = 1.0 if self._moves(number, func) else self._times(number, func)
        return [
            self._shaken(tensor, times * _unit(type_), number, _RESULTS + at) if rounds(call, type_, tensor) else tensor
            for at, (tensor, type_) in enumerate(zip(given, call.results, strict=True))
        ]

    def _times(self, number: int, func: Any) -> float:
        """How many times its rounding a number is moved where sums may be added one by one."""
        call = self._step.nodes[number]
        assert isinstance(call, Call)
        return max(1.0, SERIAL * sqrt(_terms(self._step, call, func))) if self._serial else 1.0

    def _moves(self, number: int, func: Any) -> bool:
        call = self._step.nodes[number]
        assert isinstance(call, Call)
        is_added = func._opname in _ADDING and (*call.args, call.kwargs.get("accumulate"))[3] is True
        return moves(func) and not is_added and func._overloadname not in _SUMMING

    def _casts(self, call: Call, type_: Type | None, tensor: torch.Tensor) -> bool:
        """Whether numbers that are only moved end in a shorter dtype; whole ones may be held by it none the less."""
        units = [_unit(type_of(self._step, ref)) for ref in reads(call)]
        if type_ is None or not units or _unit(type_) <= min(units):
            return False
        return min(units) > 0 or bool((tensor.to(TORCH_DTYPES[type_.dtype]) != tensor).any())

    def _shaken(self, tensor: torch.Tensor, unit: float, number: int, position: int) -> torch.Tensor:
        if not unit or not tensor.numel():
            return tensor
        if tensor.is_complex():
            parts = torch.view_as_real(tensor.resolve_conj())
            return torch.view_as_complex(self._shaken(parts, unit, number, position).contiguous())
        # One number of memory is shaken once, however often it is looked at.
        shape = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        return tensor * self._around_one(shape, unit, number, position)

    def _around_one(self, shape: Sequence[int], unit: float, number: int, position: int) -> torch.Tensor:
        bits = np.random.Philox(key=[self._seed % 2**64, number], counter=[0, 0, 0, position]).random_raw(prod(shape))
        drawn = torch.from_numpy((bits >> np.uint64(11)).astype(np.float64)).mul_(2.0**-52).sub_(1.0)
        if unit <= _FINEST:  # which float64 cannot add to one: as much in the mean square, by rarer whole steps
            drawn = 2 * ((drawn > 11 / 12).double() - (drawn < -11 / 12).double())
        return drawn.mul_(unit).add_(1.0).reshape(tuple(shape))


def moves(func: Any) -> bool:
    """Whether an operation computes nothing: by its schema, by torch's tags, or because it is on the list."""
    tags = func.tags
    is_listed = func._opname in MOVING
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


def _terms(step: Step, call: Call, func: Any) -> float:
    """How many terms a number that a call gives is the sum of, from shapes alone; a product's by its operations."""
    read = [one for ref in reads(call) if (one := type_of(step, ref)) is not None and _unit(one)]
    given = [one for one in call.results if one is not None and _unit(one) and prod(one.shape)]
    if not read or not given:
        return 1.0
    if func.overloadpacket in flop_registry:
        shapes = [type_of(step, item) if isinstance(item, Ref) else item for item in call.args]
        try:
            told = [one.shape if isinstance(one, Type) else one for one in shapes]
            flops = flop_registry[func.overloadpacket](*told, **call.kwargs, out_val=None, out_shape=given[0].shape)
            return max(1.0, float(flops) / (2 * prod(given[0].shape)))
        except (TypeError, ValueError, IndexError, AssertionError, AttributeError):
            pass
    terms = max(prod(one.shape) for one in read) / min(prod(one.shape) for one in given)
    if not any(word in func._opname for word in _ALONG_ROWS):
        return terms
    listed = [item for item in call.args if isinstance(item, list | tuple) and all(type(one) is int for one in item)]
    along = [prod(listed[0])] if listed else [one.shape[-1] for one in read if one.shape]  # the axes of a norm
    return max(terms, *along)


def _unit(type_: Type | None) -> float:
    return 0.0 if type_ is None else UNIT_ROUNDOFF.get(type_.dtype, 0.0)
