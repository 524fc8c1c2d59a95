"""A run that is rounded at random as a whole: what one seed moves, and what runs of several seeds share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from ...kernels import noises
from ..calls import Call, Leaf, Ref, Step, Type, reads
from .calling import operation
from .op_kinds import moves, unit_of
from .rounding import Rounding, rounded_once
from .scalars import Scalars
from .sums import LONG, Sum, tensors_in

T = TypeVar("T")

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
        found: torch.Tensor = rounded_once(make(), unit, self._key(ref.node, ref.at))
        return found

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
