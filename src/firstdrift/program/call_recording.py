"""Calls written down while they are made, as a program holds them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .calls import Call, NotReplayableError, Ref, Type
from .op_facts import results_of, written_by
from .running.calling import operation
from .torch_values import DTYPE_NAMES, plain

MOST_CALLS = 20_000  # of one function
MOST_RESULT = 1 << 31  # elements of one result

Key = Callable[[torch.Tensor], Hashable]


class CallRecording(TorchDispatchMode):
    """Inside, every call is written down, numbered from `first`. `key` tells tensors apart, all of which stay alive.

    A functional one refuses calls that write to what they are given.
    """

    def __init__(self, first: int, key: Key, *, functional: bool) -> None:
        super().__init__()
        self.first = first
        self.calls: list[Call] = []
        self.results: list[tuple[torch.Tensor, ...]] = []
        self.read: set[Ref] = set()
        self._key = key
        self._functional = functional
        self._refs: dict[Hashable, Ref] = {}
        self._alive: list[torch.Tensor] = []  # so that no other tensor takes the place of one

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing compiles here; being kept from it would load the compiler, which takes seconds."""
        return False

    def know(self, tensor: torch.Tensor, ref: Ref) -> None:
        """Say what a tensor is."""
        self._refs[self._key(tensor)] = ref
        self._alive.append(tensor)

    def find(self, tensor: torch.Tensor | None) -> Ref | None:
        """What a tensor is; None where that is not known."""
        return None if tensor is None else self._refs.get(self._key(tensor))

    def ref(self, tensor: torch.Tensor) -> Ref:
        """What a tensor is, which has to be known."""
        found = self.find(tensor)
        if found is None:
            raise NotReplayableError("it uses a tensor that no call made")
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Take down one call."""
        kwargs = kwargs or {}
        if len(self.calls) >= MOST_CALLS:
            raise NotReplayableError(f"it takes more than {MOST_CALLS} calls")
        if self._functional and func._schema.is_mutable:
            raise NotReplayableError(f"{func} writes to what it is given")
        _, facts = operation(str(func))
        said = self._encoded(args)
        named = {key: self._encoded(item) for key, item in kwargs.items() if key != "pin_memory"}
        returned = func(*args, **kwargs)
        written = written_by(facts, args, kwargs)
        for tensor in written:
            self._forget_around(tensor)
        results = tuple(results_of(returned, written))
        for at, result in enumerate(results):
            if result.numel() > MOST_RESULT:
                raise NotReplayableError(f"{func} would make {result.numel()} elements")
            self.know(result, Ref(self.first + len(self.calls), at))
        self.calls.append(Call(str(func), said, named, tuple(map(_type, results))))
        self.results.append(results)
        return returned

    def _forget_around(self, part: torch.Tensor) -> None:
        """What a part is written to is no longer what a call made: who reads it is refused."""
        own = geometry(part)
        for tensor in self._alive:
            key = geometry(tensor)
            if key[0] == own[0] and prod(key[2]) > prod(own[2]):
                self._refs.pop(self._key(tensor), None)

    def _encoded(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            ref = self.ref(item)
            self.read.add(ref)
            return ref
        return tuple(map(self._encoded, item)) if isinstance(item, tuple | list) else plain(item)


def geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A tensor by its storage and where it lies in it: autograd wraps views anew."""
    place = tensor.untyped_storage()._cdata, tensor.storage_offset()
    return (*place, tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _type(tensor: torch.Tensor) -> Type:
    """The type of a tensor; on the meta device, how it would lie is not known."""
    return Type(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), None if tensor.is_meta else tuple(tensor.stride()))
