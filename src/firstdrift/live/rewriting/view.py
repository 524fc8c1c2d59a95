"""One call of a program as rewrites see it, and what a rewrite is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from .program import Call, Change, Program, Ref

SOFTMAX = frozenset({"softmax", "scaled_dot_product_attention", "log_softmax"})
MIXING = SOFTMAX | {"matmul", "linear", "einsum", "bmm"}
JOINS = frozenset({"cat", "stack", "__setitem__", "concat", "flatten"})


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One way in which the candidate may call a function otherwise. Calls of one function that are rewritten in one
    `kind` of way are also tried together: keys and values are often treated alike."""

    kind: str
    label: str
    said: str
    change: Change
    free: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)


Rewrites = Callable[["View"], Iterator[Rewrite]]


@dataclass(frozen=True)
class View:
    """A call, what it was given, and what is made of its results."""

    program: Program
    number: int

    @property
    def call(self) -> Call:
        """The call itself."""
        return self.program.calls[self.number]

    @cached_property
    def given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What it was given."""
        return self.program.arguments(self.number)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among its positional arguments."""
        return [one for one in self.given[0] if isinstance(one, torch.Tensor)]

    @property
    def result(self) -> torch.Tensor:
        """What it made; of several, the first."""
        return self.call.results[0]

    @cached_property
    def after(self) -> frozenset[str]:
        """The functions that work on what it made, however far behind it."""
        ahead = {name for name in ("softmax", "embedding") if name in self.program.ahead}
        return self._reached(frozenset()) | ahead

    def _reached(self, stop: frozenset[str]) -> frozenset[str]:
        """The functions behind it, up to some that are not gone through."""
        return frozenset(self.program.calls[number].name for number in self._numbers_reached(stop))

    def _numbers_reached(self, stop: frozenset[str]) -> set[int]:
        reached, left = {self.number}, [self.number]
        while left:
            for number in self.program.readers(left.pop()):
                if number not in reached and self.program.calls[number].name not in stop:
                    reached.add(number)
                    left.append(number)
        return reached - {self.number}

    @cached_property
    def next(self) -> frozenset[str]:
        """The functions that read what it made."""
        return frozenset(self.program.calls[number].name for number in self.program.readers(self.number))

    @cached_property
    def before(self) -> frozenset[str]:
        """The functions that its arguments came from, however far before it."""
        reached: set[int] = set()
        left = [ref.call for ref in self.call.reads]
        while left:
            number = left.pop()
            if number not in reached:
                reached.add(number)
                left.extend(ref.call for ref in self.program.calls[number].reads)
        return frozenset(self.program.calls[number].name for number in reached)

    @property
    def in_attention(self) -> bool:
        """Whether a softmax works on what it made, or made what it works on."""
        return bool(SOFTMAX & (self.after | self.before))

    @cached_property
    def in_tables(self) -> bool:
        """Whether it makes angles, of which cosines and sines are taken before they are mixed with anything."""
        return self.number in self.program.angles or bool(self.program.angles & self._numbers_reached(MIXING))

    @cached_property
    def is_bias_of_scores(self) -> bool:
        """Whether what it made is added to scores that do not come from it: a bias by distance."""
        behind = self._reached(SOFTMAX)
        added = {"add", "sub", "add_"} & (behind | {self.call.name})
        return bool(SOFTMAX & self.after and added) and not MIXING & (self.before | behind)

    @property
    def is_rotation(self) -> bool:
        """Whether the program takes cosines and sines of angles."""
        return bool(self.program.angles)

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument, given by its place or by its name."""
        args, kwargs = self.given
        return args[place] if len(args) > place else kwargs.get(name, default)

    def changed(self, **others: tuple[int, Any]) -> Change:
        """The function, called with other arguments: name=(place, value)."""

        def call(*args: Any, **kwargs: Any) -> Any:
            now, named = list(args), dict(kwargs)
            for name, (place, value) in others.items():
                if len(now) > place:
                    now[place] = value
                else:
                    named[name] = value
            return self.call.func(*now, **named)

        return call

    def then(self, work: Callable[[torch.Tensor], torch.Tensor]) -> Change:
        """The function, with something done to its results afterwards."""

        def call(*args: Any, **kwargs: Any) -> Any:
            made = self.call.func(*args, **kwargs)
            made = args[0] if made is None else made
            return work(made) if isinstance(made, torch.Tensor) else tuple(work(one) for one in made)

        return call


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor has one axis at most: a bias, a gain."""
    return sum(size > 1 for size in tensor.shape) <= 1


def is_parameter(item: Any) -> bool:
    """Whether a tensor is one of the model's own."""
    return isinstance(item, nn.Parameter)


def is_ref(item: Any) -> bool:
    """Whether an argument was made by an earlier call."""
    return isinstance(item, Ref)
