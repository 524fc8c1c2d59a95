"""One call made: as it was, or by way of other operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..calls import FUNCTIONS, Call, NotReplayableError, Type
from ..op_facts import Facts, results_of, written_by
from ..torch_values import LIFTED, TORCH_DTYPES
from .allowed import with_copies
from .opened import opened

# What a call may raise on arguments that are wrong; it is the program that is wrong then.
FAILURES = (
    RuntimeError, TypeError, ValueError, IndexError, KeyError, OverflowError, NotImplementedError, AssertionError,
    MemoryError, AttributeError,
)  # fmt: skip
_ROOMS = {"torch.nn.functional": torch.nn.functional, "torch": torch}
FUNCTIONS_BY_NAME = {
    name: getattr(_ROOMS[room], last) for name in FUNCTIONS for room, _, last in [name.rpartition(".")]
}

Values = Sequence[torch.Tensor]


def made(func: Any, facts: Facts, args: list[Any], kwargs: dict[str, Any], count: int, differentiates: bool) -> Values:
    """The results of a call; some operations keep more where gradients will be asked for."""
    results: Values = ()
    for gradients in (True,) if differentiates else (False, True):
        with torch.set_grad_enabled(gradients):
            given, named = with_copies(facts, args, kwargs)
            results = results_of(func(*given, **named), written_by(facts, tuple(given), named))
        if len(results) == count:
            break
    return results


def made_otherwise(
    func: Any, facts: Facts, args: list[Any], kwargs: dict[str, Any], call: Call, why: RuntimeError
) -> Values | None:
    """The results of a call that is opened; None where no way is known, or where it failed for its arguments."""
    given, named = with_copies(facts, args, kwargs)
    found = opened(func, given, named, is_missing=_is_missing(why))
    if found is None:
        return None
    written = written_by(facts, tuple(given), named)
    returned = found[: len(call.results) - len(written)]
    types = call.results[: len(returned)]
    pairs = enumerate(zip(returned, types, strict=True))
    return [*(one if _fits(one, type_, at) else unknown(type_) for at, (one, type_) in pairs), *written]


def differentiable(base: str, args: list[Any]) -> torch.Tensor:
    """Calls whose derivative torch has not: autograd's own detach, and the scatter that a write through a view is."""
    if base == "detach":
        alias: torch.Tensor = torch.ops.aten.alias(args[0])
        return alias
    whole, part, *where = args
    placed = torch.ops.aten.as_strided_scatter(torch.zeros_like(whole), part, *where)
    written = torch.ops.aten.as_strided_scatter(torch.zeros_like(whole), torch.ones_like(part), *where) != 0
    return torch.where(written, placed, whole)


def _is_missing(error: RuntimeError) -> bool:
    """Whether an operation failed because nobody wrote it for this device or dtype."""
    return isinstance(error, NotImplementedError) or "not implemented for" in str(error)


def _fits(tensor: torch.Tensor | None, type_: Type | None, at: int) -> bool:
    """Whether a result is the one that was recorded: what a kernel keeps beside its first may be of another kind."""
    return tensor is not None and (at == 0 or type_ is None or tuple(tensor.shape) == type_.shape)


def unknown(type_: Type | None) -> torch.Tensor:
    """What stands for a result that only the kernel knew: whoever computes with it gets no number."""
    kind = None if type_ is None else TORCH_DTYPES.get(type_.dtype)
    if type_ is None or kind is None:
        raise NotReplayableError("a result without a type that a trace can hold cannot be left open")
    fill = float("nan") if kind in LIFTED else 0
    return torch.full((1,) * len(type_.shape), fill, dtype=kind).expand(type_.shape)


def _native_dropout(args: Any, mask: torch.Tensor) -> Values:
    mask = mask.to(torch.bool)
    if args[2:3] == [False]:  # not training: nothing was dropped
        return [args[0].clone(), mask]
    keep = 1.0 - args[1]
    return [(args[0] * mask).mul_(0.0 if keep == 0.0 else 1.0 / keep), mask]


def _rrelu(args: Any, noise: torch.Tensor) -> Values:
    training = args[4] if len(args) > 4 else False
    if not training:  # nothing was drawn, and the noise was not read
        lower, upper = (args[2:4] + [1 / 8, 1 / 3][len(args[2:4]) :])[:2]
        return [torch.nn.functional.leaky_relu(args[0], (lower + upper) / 2), noise]
    return [torch.where(args[0] <= 0, args[0] * noise, args[0]), noise]


# What a call that draws and computes in one makes of the random numbers, which come from the trace.
AFTER_DRAWING: dict[str, Callable[[Any, torch.Tensor], Values]] = {
    **dict.fromkeys(("native_dropout", "_fused_dropout"), _native_dropout),
    **dict.fromkeys(("rrelu_with_noise", "rrelu_with_noise_"), _rrelu),
}
