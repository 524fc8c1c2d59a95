"""Which operations are run from a file, and with copies of what they write to."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ..calls import NotReplayableError
from ..op_facts import Facts, facts_of

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
