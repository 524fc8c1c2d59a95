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

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ...core.dtypes import UNIT_ROUNDOFF
from ...kernels import noises
from ..calls import Call, Leaf, Ref, Step, Type, reads
from ..op_facts import facts_of, written_by
from .allowed import operation
from .op_kinds import (
    ATTENTION,
    EXACT,
    GROWN_AS_STORED,
    IN_STEPS,
    ON_GRID,
    is_function,
    is_sum,
    moves,
    plain_name,
    unit_of,
)
from .opened import STEPS, opened
from .scalars import Scalars
from .sums import LONG, Sum, added_up, listed, tensors_in

T = TypeVar("T")
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
_UNMOVED_BYTES = 128 << 20


class Unmoved:
    """What is the same for every seed of a step, while it is small: what it starts from, what it decides, and the sums
    of what was not moved. Runs share one that differ in their seeds alone, and start from nothing that is moved."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._found: dict[Hashable, Any] = {}
        self._left = _UNMOVED_BYTES

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is known by a key, made if nobody has made it."""
        if key in self._found:
            known: T = self._found[key]
            return known
        found = make()
        size = sum(tensor.nbytes for tensor in tensors_in(found))
        if size <= self._left:
            self._left -= size
            self._found[key] = found
        return found

    def sums(self, node: int, at: int, make: Callable[[], list[Sum]]) -> list[Sum]:
        """Those of an operation inside a node."""
        return self.once(("sum", node, at), make)


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
            return self.unmoved.once(ref, make)
        unit = 0.0 if ref in self._shake.steady else self._unit(self._step.type_of(ref))
        moved: torch.Tensor = _moved(make(), unit, self._key(ref.node, ref.at))
        return moved

    def _unit(self, type_: Type | None) -> float:
        unit = unit_of(type_)
        return max(unit, self._shake.coarsest) * self._shake.times if unit else 0.0

    def scalars(self, number: int, item: Any) -> Any:
        """Arguments of a call; if it is an optimizer's, with its constants rounded: no format is too short to derive
        them in float32."""
        call = self._step.nodes[number]
        if not isinstance(call, Call) or call.part != "optimizer":
            return item
        unit = max(map(self._unit, call.results), default=0.0)
        return self._scalars.moved(item, min(unit, LONG * self._shake.times), number) if unit >= LONG else item

    def around(self, number: int, func: Any) -> Rounding:
        """What a call is made in."""
        call = self._step.nodes[number]
        assert isinstance(call, Call)
        unit = max(map(self._unit, call.results), default=0.0)
        shorter = unit > min((self._unit(self._step.type_of(ref)) for ref in reads(call)), default=1.0)
        is_open = any(Ref(number, at) in self._open for at in range(len(call.results)))
        long = LONG * self._shake.times
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
        return [_moved(result, self._last, self._next()) for result in results]

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
            found = found + (_moved(tensor, unit, self._next(), TAIL) - 1)
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
        found = noises.scattered(_numbers(total), _numbers(error), self._next())
        return _moved(torch.from_numpy(found), unit, self._next()) if unit > self._long else torch.from_numpy(found)

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
            off = _moved(term, max(unit, self._unit), self._next()) - term
            found = found.add_(off) if func._schema.is_mutable else found + off
        return self._rounded(func, args, kwargs, found, unit)

    def _unknown(self, func: Any, args: Any, kwargs: Any, unit: float) -> Any:
        """An operation of which nothing is known: what it reads is moved by a rounding, and what it gives."""

        def moved(item: Any) -> Any:
            return _moved(item, unit, self._next())

        args, kwargs = tree_map_only(torch.Tensor, moved, args), tree_map_only(torch.Tensor, moved, kwargs)
        return self._rounded(func, args, kwargs, func(*args, **kwargs), unit)

    def _rounded(
        self, func: Any, args: Any, kwargs: Any, found: Any, unit: float, times: float = 1.0,
        held: noises.Format | None = None,
    ) -> Any:  # fmt: skip
        """Every float that an operation gave or wrote, rounded; but for those that a format has as they are."""
        results = written_by(facts_of(func), args, kwargs) if func._schema.is_mutable else listed(found)
        moved = [_moved(result, unit, self._next(), times, held) for result in results]
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
