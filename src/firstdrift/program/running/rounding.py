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

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ...core.dtypes import UNIT_ROUNDOFF
from ...kernels import noises
from ..op_facts import facts_of, written_by
from .op_kinds import ATTENTION, EXACT, GROWN_AS_STORED, IN_STEPS, ON_GRID, is_function, is_sum, moves, plain_name
from .opened import STEPS, opened
from .sums import Sum, added_up, listed, tensors_in

Sums = Callable[[int, Callable[[], list[Sum]]], list[Sum]]  # those of an operation, made if nobody has made them

STEP = 2.0  # unit roundoffs of a power of two, from one number of a dtype to the next
FUNCTIONS = 2.0  # times as far off is a function of one number that a library computes
FAST = 4.0  # times as far off is one inside a larger kernel, which may approximate it
TAIL = 2.0  # times one rounding of 1, an error function is off by there, also where it is small: 1 less its tail

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


class Rounding(TorchDispatchMode):
    """Inside, what operations give is rounded at random. `unit` is that of the results of the one call that is made
    here, `last` the one by which they are rounded in the end, `long` the one that shorter formats compute with inside,
    and `shorter` says that it casts; what it is opened into may round finer. Where nothing that the call reads was
    moved, `sums` keeps the sums of that."""

    def __init__(
        self, func: Any, unit: float, last: float, long: float, shorter: bool, key: Callable[[int], int],
        sums: Sums | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._func, self._shorter = func, shorter
        self._unit, self._last, self._long = unit, last, long
        self._key = key
        self._sums = sums
        self._unmoved: dict[int, torch.Tensor] | None = None  # tensors by their identity, of which this holds on to
        self._grown = unit if plain_name(func) in GROWN_AS_STORED else min(unit, long)  # in which sums grow
        in_steps = plain_name(func) in IN_STEPS or func._opname.startswith(ATTENTION)
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
            self._unmoved = {} if self._sums is None else {id(tensor): tensor for tensor in tensors_in((args, kwargs))}
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
        return [rounded_once(result, self._last, self._next()) for result in results]

    def _made(self, func: Any, args: Any, kwargs: Any, unit: float) -> Any:
        if (terms := _terms_of(func, args, kwargs)) is not None:
            return self._added(func, args, kwargs, terms, unit)
        if is_sum(func, args, kwargs, in_steps=unit > self._long):
            return self._summed(func, args, kwargs, unit)
        if moves(func) or func._opname in ON_GRID:
            found = func(*args, **kwargs)
            if func is self._func and self._shorter:
                return self._rounded(func, args, kwargs, found, unit, held=_HELD.get(unit))
            return self._handed_on(func, args, kwargs, found)
        if is_function(func):
            found = func(*args, **kwargs)
            if plain_name(func) in EXACT:
                return self._rounded(func, args, kwargs, found, unit, held=_HELD.get(unit))
            if plain_name(func) == "erf" and func is not self._func and unit <= self._long:
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
            found = found + (rounded_once(tensor, unit, self._next(), TAIL) - 1)
        return found

    def _opened(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The results of an operation by way of others, each rounded; None where no way is known."""
        opener = STEPS.get(func) or decomposition_table.get(func)
        with self:
            if func._opname.startswith(ATTENTION):
                found = opened(func, args, kwargs, is_missing=True)
            else:
                found = None if opener is None else opener(*args, **kwargs)
        return None if found is None else _as_returned(func, args, kwargs, found)

    def _summed(self, func: Any, args: Any, kwargs: Any, unit: float) -> Any:
        """A sum, rounded as it grows: 16-bit formats grow theirs in float32."""
        grown = min(max(unit, self._unit), self._grown)
        make = partial(added_up, func, args, kwargs, unit, grown, self._long)
        is_kept = self._sums is not None and self._is_unmoved(args, kwargs)
        sums = self._sums(self._drawn, make) if self._sums is not None and is_kept else make()
        moved = [one.total if one.error is None else self._off(one.total, one.error, unit) for one in sums]
        found = sums[0].total if len(func._schema.returns) == 1 else tuple(one.total for one in sums)
        return _given_back(func, args, kwargs, found, moved)

    def _off(self, total: torch.Tensor, error: torch.Tensor, unit: float) -> Any:
        """A sum that is off by what it may be, as it is stored."""
        found = torch.from_numpy(noises.scattered(_numbers(total), _numbers(error), self._next()))
        return rounded_once(found, unit, self._next()) if unit > self._long else found

    def _is_unmoved(self, args: Any, kwargs: Any) -> bool:
        """Whether what an operation reads is the same for every seed."""
        known = self._unmoved or {}
        return bool(known) and all(id(tensor) in known for tensor in tensors_in((args, kwargs)))

    def _handed_on(self, func: Any, args: Any, kwargs: Any, found: Any) -> Any:
        """What an operation gave that moves nothing: as unmoved as what it read."""
        if self._unmoved and self._is_unmoved(args, kwargs):
            self._unmoved.update((id(tensor), tensor) for tensor in tensors_in(found))
        return found

    def _added(self, func: Any, args: Any, kwargs: Any, terms: Sequence[torch.Tensor], unit: float) -> Any:
        """Elementwise products that are added up: each is rounded before, however much of it cancels."""
        found = func(*args, **kwargs)
        for term in terms:
            off = rounded_once(term, max(unit, self._unit), self._next()) - term
            found = found.add_(off) if func._schema.is_mutable else found + off
        return self._rounded(func, args, kwargs, found, unit)

    def _unknown(self, func: Any, args: Any, kwargs: Any, unit: float) -> Any:
        """An operation of which nothing is known: what it reads is moved by a rounding, and what it gives."""

        def moved(item: Any) -> Any:
            return rounded_once(item, unit, self._next())

        args, kwargs = tree_map_only(torch.Tensor, moved, args), tree_map_only(torch.Tensor, moved, kwargs)
        return self._rounded(func, args, kwargs, func(*args, **kwargs), unit)

    def _rounded(
        self, func: Any, args: Any, kwargs: Any, found: Any, unit: float, times: float = 1.0,
        held: noises.Format | None = None,
    ) -> Any:  # fmt: skip
        """Every float that an operation gave or wrote, rounded; but for those that a format has as they are."""
        results = written_by(facts_of(func), args, kwargs) if func._schema.is_mutable else listed(found)
        moved = [rounded_once(result, unit, self._next(), times, held) for result in results]
        return _given_back(func, args, kwargs, found, moved)

    def _next(self) -> int:
        self._drawn += 1
        return self._key(_RESULTS + self._drawn)


def _as_returned(func: Any, args: Any, kwargs: Any, found: Any) -> Any:
    """What an opened operation gives, as its schema says it; torch does not survive anything else. A kernel's own
    notes, which nobody else can make, are the kernel's, and so is what it was asked not to give; None where results are
    missing."""
    count, results = len(func._schema.returns), listed(found)
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


def rounded_once(
    tensor: Any, unit: float, key: int, times: float = 1.0, held: noises.Format | None = None
) -> Any:  # fmt: skip
    """A tensor with every number rounded at random, but for those that `held` has; anything else as it is."""
    if not isinstance(tensor, torch.Tensor) or not unit or not tensor.numel():
        return tensor
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.resolve_conj())
        return torch.view_as_complex(rounded_once(parts, unit, key, times, held).contiguous())
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
