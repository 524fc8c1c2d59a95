"""What calls a function of torch makes, and those of its derivative: found out on tensors that have no numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..call_recording import CallRecording, geometry
from ..calls import Call, NotReplayableError, Ref, Type
from ..running.calling import FAILURES
from ..torch_values import TORCH_DTYPES


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
        recorder = CallRecording(len(types) + 1, geometry, functional=False)
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


def _gradients(
    recorder: CallRecording, result: torch.Tensor, arguments: Sequence[torch.Tensor]
) -> tuple[Ref | None, ...]:
    wanted = [argument for argument in arguments if argument.requires_grad]
    if not result.requires_grad or not wanted:
        return (None,) * len(arguments)
    above = torch.empty_like(result, requires_grad=False)
    recorder.know(above, Ref(len(arguments)))
    with recorder:
        found = iter(torch.autograd.grad(result, wanted, above, allow_unused=True))
    gradients = [next(found) if argument.requires_grad else None for argument in arguments]
    return tuple(None if gradient is None else recorder.ref(gradient) for gradient in gradients)


def _used(recorder: CallRecording, forward: int, made: Ref, gradients: tuple[Ref | None, ...]) -> Any:
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
    if type_.dtype not in TORCH_DTYPES:
        raise NotReplayableError(f"{type_.dtype} is a dtype that torch does not compute with")
    dtype = TORCH_DTYPES[type_.dtype]
    return torch.empty(type_.shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)
