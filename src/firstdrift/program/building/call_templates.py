"""What calls a function of torch makes, and those of its derivative: found out on tensors that have no numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...core.dtypes import ML_NAMES, NUMPY_NAMES
from ...core.strict_json import Json
from ..calls import Call, Ref, Type
from ..interpreter import NotReplayableError, operation
from ..op_facts import results_of, written_by

MOST_CALLS = 20_000  # of one operation
MOST_RESULT = 1 << 31  # elements of one result
FAILURES = (  # what torch, or a formula of ours, raises on shapes and settings that cannot be meant
    RuntimeError, TypeError, ValueError, IndexError, KeyError, ArithmeticError, NotImplementedError, AssertionError,
    AttributeError, MemoryError,
)  # fmt: skip
DTYPES = {
    **{short: getattr(torch, np.dtype(code).name) for short, code in NUMPY_NAMES.items()},
    **{short: getattr(torch, name) for short, name in ML_NAMES.items() if hasattr(torch, name)},
}
_SHORT = {dtype: short for short, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Template:
    """The calls of a function. Nodes below `arguments` are its arguments; the gradient of its result is the last one.

    `gradients` has, for each argument but the last, the derivative; None where there is none. The first `forward`
    calls make the result.
    """

    arguments: int
    calls: tuple[Call, ...]
    forward: int
    result: Ref
    gradients: tuple[Ref | None, ...]


def template_of(function: Callable[[Sequence[torch.Tensor]], torch.Tensor], types: Sequence[Type]) -> Template:
    """The calls that a function makes of arguments of these types; NotReplayableError says why it cannot be made."""
    try:
        arguments = [_without_numbers(one) for one in types]
        recorder = _Recorder(len(types) + 1)
        for number, argument in enumerate(arguments):
            recorder.know(argument, Ref(number))
        with recorder, torch.enable_grad():
            result = function(arguments)
        forward = len(recorder.calls)
        made = recorder.ref(result)
        return Template(len(types) + 1, *_used(recorder, forward, made, _gradients(recorder, result, arguments)))
    except NotReplayableError:
        raise
    except FAILURES as error:
        why = str(error).splitlines() or [type(error).__name__]
        raise NotReplayableError(why[0]) from None


def _gradients(recorder: _Recorder, result: torch.Tensor, arguments: Sequence[torch.Tensor]) -> tuple[Ref | None, ...]:
    wanted = [argument for argument in arguments if argument.requires_grad]
    if not result.requires_grad or not wanted:
        return (None,) * len(arguments)
    above = torch.empty_like(result, requires_grad=False)
    recorder.know(above, Ref(len(arguments)))
    with recorder:
        found = iter(torch.autograd.grad(result, wanted, above, allow_unused=True))
    gradients = [next(found) if argument.requires_grad else None for argument in arguments]
    return tuple(None if gradient is None else recorder.ref(gradient) for gradient in gradients)


def _used(recorder: _Recorder, forward: int, made: Ref, gradients: tuple[Ref | None, ...]) -> Any:
    """Of results that nobody reads nothing is said: devices differ in how they fill what is not needed."""
    read = {made, *gradients, *recorder.read}
    calls = tuple(
        replace(call, results=tuple(
            type_ if Ref(recorder.first + number, at) in read else None for at, type_ in enumerate(call.results)
        ))
        for number, call in enumerate(recorder.calls)
    )  # fmt: skip
    return calls, forward, made, gradients


def _without_numbers(type_: Type) -> torch.Tensor:
    if type_.dtype not in DTYPES:
        raise NotReplayableError(f"{type_.dtype} is a dtype that torch does not compute with")
    dtype = DTYPES[type_.dtype]
    return torch.empty(type_.shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)


class _Recorder(TorchDispatchMode):
    """Takes down every call. A tensor is known by its storage and where it lies in it: autograd wraps views anew."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        self.calls: list[Call] = []
        self.read: set[Ref] = set()
        self._refs: dict[Any, Ref] = {}
        self._alive: list[Any] = []  # so that no storage takes the place of another

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing compiles here; being kept from it would load the compiler, which takes seconds."""
        return False

    def know(self, tensor: torch.Tensor, ref: Ref) -> None:
        """Say what a tensor is."""
        self._refs[_key(tensor)] = ref
        self._alive.append(tensor.untyped_storage())

    def ref(self, tensor: torch.Tensor) -> Ref:
        """What a tensor is."""
        if _key(tensor) not in self._refs:
            raise NotReplayableError("it uses a tensor that no call made")
        return self._refs[_key(tensor)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Take down one call."""
        kwargs = kwargs or {}
        if len(self.calls) >= MOST_CALLS:
            raise NotReplayableError(f"it takes more than {MOST_CALLS} calls")
        _, facts = operation(str(func))
        said, named = self._encoded(args), {key: self._encoded(item) for key, item in kwargs.items()}
        made = func(*args, **kwargs)
        written = written_by(facts, args, kwargs)
        for tensor in written:
            self._forget_around(tensor)
        results = results_of(made, written)
        number = self.first + len(self.calls)
        for at, result in enumerate(results):
            if result.numel() > MOST_RESULT:
                raise NotReplayableError(f"{func} would make {result.numel()} elements")
            self.know(result, Ref(number, at))
        named.pop("pin_memory", None)
        self.calls.append(Call(str(func), said, named, tuple(_type(tensor) for tensor in results)))
        return made

    def _forget_around(self, part: torch.Tensor) -> None:
        """What a part is written to is no longer what a call made: who reads it is refused."""
        own = _key(part)
        for key in [key for key in self._refs if key[0] == own[0] and prod(key[2]) > prod(own[2])]:
            del self._refs[key]

    def _encoded(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            ref = self.ref(item)
            self.read.add(ref)
            return ref
        if isinstance(item, tuple | list):
            return tuple(self._encoded(one) for one in item)
        return _plain(item)


def _key(tensor: torch.Tensor) -> tuple[Any, ...]:
    place = tensor.untyped_storage()._cdata, tensor.storage_offset()
    return (*place, tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _plain(item: Any) -> Json:
    """An argument as a program holds it."""
    if isinstance(item, float) and not isfinite(item):
        return {"float": "nan" if item != item else "inf" if item > 0 else "-inf"}
    if isinstance(item, torch.dtype):
        return {"dtype": _SHORT.get(item, str(item).removeprefix("torch."))}
    if isinstance(item, torch.device):
        return {"device": "cpu"}
    for kind, tag in ((torch.layout, "layout"), (torch.memory_format, "memory_format")):
        if isinstance(item, kind):
            return {tag: str(item).removeprefix("torch.")}
    return item


def _type(tensor: torch.Tensor) -> Type:
    return Type(_SHORT[tensor.dtype], tuple(tensor.shape))
