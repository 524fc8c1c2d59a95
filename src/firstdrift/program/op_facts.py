"""What has to be known of an ATen operation to write its calls down and to make them again, learnt from its schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

# What draws random numbers. Fused attention is not here: it draws only if it is told to, and cannot say what.
DRAWS = frozenset({
    "bernoulli", "bernoulli_", "binomial", "cauchy", "cauchy_", "exponential", "exponential_", "geometric",
    "geometric_", "log_normal", "log_normal_", "multinomial", "native_dropout", "normal", "normal_", "poisson", "rand",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "random_", "randperm", "rrelu_with_noise",
    "rrelu_with_noise_", "uniform", "uniform_", "_fused_dropout", "_sample_dirichlet", "_standard_gamma",
})  # fmt: skip
_BITS = frozenset({"bernoulli", "bernoulli_", "native_dropout", "_fused_dropout"})
# Which results are drawn, where it is not all of them: the others follow from these and from the arguments.
_SOME_DRAWN = {"native_dropout": 1, "_fused_dropout": 1, "rrelu_with_noise": 1, "rrelu_with_noise_": 1}
# Operations that write to arguments and whose schema does not say so: to these, if the argument behind is true.
_UNSAID: Mapping[str, tuple[tuple[int, ...], int]] = {
    "native_batch_norm": ((3, 4), 5),
    "cudnn_batch_norm": ((3, 4), 5),
    "miopen_batch_norm": ((3, 4), 5),
}
# Operations that give a tensor another shape, or other memory, and write no number.
_RESHAPING = frozenset({
    "as_strided_", "detach_", "resize_", "resize_as_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_",
    "transpose_", "unsqueeze_",
})  # fmt: skip
_FUSED_DROPOUT = "dropout_p"
_SILENT = ("profiler.", "prim.")  # namespaces of operations that compute nothing


class Facts(NamedTuple):
    """An operation: its name in a program, what it writes to, whether it draws."""

    name: str
    base: str
    written: tuple[tuple[int, str], ...]  # arguments by position and name
    reshapes: bool
    draws: bool
    bits: bool
    drawn: int | None  # the one result that is drawn; None for all of them
    unsaid: tuple[tuple[int, ...], int] | None
    dropout: int | None  # the position of a dropout probability inside a fused kernel
    is_silent: bool
    writes: bool  # to what it is given, or may do so


def facts_of(func: Any) -> Facts:
    """Learn an operation."""
    name = str(func)
    base = name.split(".")[1] if name.count(".") else name
    schema = getattr(func, "_schema", None)  # which operators of higher order have not
    arguments = [] if schema is None else schema.arguments
    written = tuple(
        (at, one.name) for at, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write
    )
    names = [argument.name for argument in arguments]
    is_drawing = base in DRAWS and name.startswith("aten.")
    return Facts(
        name if "." in name else f"higher_order.{name}", base, written, base in _RESHAPING, is_drawing, base in _BITS,
        _SOME_DRAWN.get(base), _UNSAID.get(base),
        names.index(_FUSED_DROPOUT) if _FUSED_DROPOUT in names and not is_drawing else None,
        name.startswith(_SILENT), bool(written) or base in _UNSAID,
    )  # fmt: skip


def written_by(facts: Facts, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that a call writes to, in the order of its arguments."""
    if not facts.writes:
        return []
    found: list[torch.Tensor] = []
    for at, name in facts.written:
        item = args[at] if at < len(args) else kwargs.get(name)
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, tuple | list):
            found += [tensor for tensor in item if isinstance(tensor, torch.Tensor)]
    if facts.unsaid is not None and args[facts.unsaid[1]]:
        found += [args[at] for at in facts.unsaid[0] if args[at] is not None]
    return found


def results_of(returned: Any, written: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a call: what it returned, then what it wrote to and did not return."""
    results = [returned] if isinstance(returned, torch.Tensor) else flat(returned)
    if not written or (len(written) == 1 and written[0] is returned):
        return results
    return results + [tensor for tensor in written if not any(tensor is other for other in results)]


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors in what a call returned."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, tuple | list) else []
