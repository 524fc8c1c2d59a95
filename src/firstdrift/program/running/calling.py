"""One call made: which operations are run from a file, with copies of what they write to, or by way of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from ..calls import FUNCTIONS, Call, NotReplayableError, Type
from ..op_facts import Facts, facts_of, results_of, written_by
from ..torch_values import LIFTED, TORCH_DTYPES
from .opened import opened

Values = Sequence[torch.Tensor]

# Operations of ATen that reach outside the tensors they are given.
_FORBIDDEN = frozenset({"from_file", "set_", "set", "set_data", "resize_storage_bytes_", "_resize_output_"})
_OPERATORS = frozenset(
    {"__and__", "__or__", "__xor__", "__lshift__", "__rshift__"}
)  # names that are Python's elsewhere
_SPACES = {"aten": torch.ops.aten, "prims": torch.ops.prims}


@cache
def operation(name: str) -> tuple[Callable[..., Any], Facts]:
    """An operation by its name, if it is one of ATen's that compute: a program never names code to import."""
    space, _, rest = name.partition(".")
    base, _, overload = rest.partition(".")
    if space not in _SPACES or base in _FORBIDDEN or (base.startswith("__") and base not in _OPERATORS):
        raise NotReplayableError(f"{name} is not on the list of operations that are run from a file")
    func = getattr(getattr(_SPACES[space], base, None), overload or "default", None)
    # TorchScript has operators of its own there, which seed generators or write files; the dispatcher has none of them.
    if not isinstance(func, torch._ops.OpOverload) or not torch._C._dispatch_has_kernel(func.name()):
        raise NotReplayableError(f"{name} is no operation of torch {torch.__version__}")
    facts = facts_of(func)
    if not func._schema.returns and not facts.written:
        raise NotReplayableError(
            f"{name} is not on the list of operations that are run from a file: it computes nothing"
        )
    return func, facts


def with_copies(facts: Facts, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with copies of what is written to: a value never changes."""
    written = [(at, name) for at, name in facts.written]
    if facts.unsaid is not None and args[facts.unsaid[1]]:
        written += [(at, "") for at in facts.unsaid[0]]
    args, kwargs = list(args), dict(kwargs)
    copies: dict[int, torch.Tensor] = {}  # of a tensor that is given twice, one
    for at, name in written:
        if at < len(args):
            args[at] = _copied(args[at], facts.reshapes, copies)
        elif name in kwargs:
            kwargs[name] = _copied(kwargs[name], facts.reshapes, copies)
    return args, kwargs


def _copied(item: Any, reshapes: bool, copies: dict[int, torch.Tensor]) -> Any:
    if isinstance(item, list):
        return [_copied(one, reshapes, copies) for one in item]
    if not isinstance(item, torch.Tensor):
        return item
    if reshapes:
        return torch.ops.aten.alias(item)
    if id(item) not in copies:  # with the same strides, gaps included: a kernel that meets gaps may round otherwise
        empty = torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device=item.device)
        copies[id(item)] = empty.copy_(item)
    return copies[id(item)]


# What torch, or a formula of ours, may raise on arguments that cannot be meant; the program is wrong then.
FAILURES = (
    RuntimeError, TypeError, ValueError, IndexError, KeyError, ArithmeticError, NotImplementedError, AssertionError,
    MemoryError, AttributeError,
)  # fmt: skip
_ROOMS = {"torch.nn.functional": torch.nn.functional, "torch": torch}
FUNCTIONS_BY_NAME = {
    name: getattr(_ROOMS[room], last) for name in FUNCTIONS for room, _, last in [name.rpartition(".")]
}


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
