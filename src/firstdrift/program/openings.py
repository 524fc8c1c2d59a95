"""Larger operations as the smaller calls that they consist of, written down while they are made.

Torch's own decompositions say what an operation consists of; `running/opened.py` where it has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .calls import Call, Ref, Type
from .op_facts import flat
from .running.allowed import operation, with_copies
from .running.decoding import decoded
from .running.making import FAILURES
from .running.not_replayable import NotReplayableError
from .running.opened import opened
from .running.torch_dtypes import TORCH_DTYPES, lifted

# What consists of several operations that mean something by themselves.
LARGE = frozenset({
    "_log_softmax", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "_softmax",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention", "_thnn_fused_lstm_cell", "addmm",
    "baddbmm", "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "mkldnn_rnn_layer",
    "mse_loss", "native_batch_norm", "native_group_norm", "native_layer_norm", "nll_loss_forward", "silu",
    "smooth_l1_loss", "std", "var", "var_mean", "logsumexp", "hardswish", "mish", "addcmul", "addcdiv", "lerp", "rsub",
})  # fmt: skip
_NAMES = {kind: short for short, kind in TORCH_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Opening:
    """The calls that an operation consists of with what they give, and which of that are its own results."""

    calls: tuple[tuple[Call, tuple[torch.Tensor, ...]], ...]
    results: tuple[Ref | None, ...]


def opened_by(call: Call, value: Callable[[Ref], torch.Tensor], first: int, *, exact: bool) -> Opening | None:
    """A call as smaller ones, numbered from `first`; None where it is none of those that are opened."""
    if call.op.split(".")[1] not in LARGE or call.drawn is not None:
        return None
    try:
        func, facts = operation(call.op)
        names: dict[int, Ref] = {}

        def named(ref: Ref) -> torch.Tensor:
            tensor: torch.Tensor = torch.ops.aten.alias(value(ref))
            names[id(tensor)] = ref
            kept.append(tensor)
            return tensor

        kept: list[torch.Tensor] = []
        args = decoded(call.args, named, exact=exact)
        kwargs = {name: decoded(item, named, exact=exact) for name, item in call.kwargs.items()}
        given, keywords = with_copies(facts, args, kwargs)
        if any(one is not other for one, other in zip(flat(given), flat(args), strict=True)):
            return None
        writing = _Writing(names, first, exact)
        with torch.no_grad(), writing:
            results = opened(func, given, keywords, is_missing=True)
    except (*FAILURES, NotReplayableError):
        return None
    if results is None or len(writing.calls) < 2:
        return None
    own = tuple(None if result is None else writing.names.get(id(result)) for result in results)
    return Opening(tuple(writing.calls), own) if own and own[0] is not None and own[0].node >= first else None


class _Writing(TorchDispatchMode):
    """Writes every call down; what it gives stays alive, so that it is known again."""

    def __init__(self, names: dict[int, Ref], first: int, exact: bool) -> None:
        super().__init__()
        self.names = names
        self.first = first
        self.exact = exact
        self.calls: list[tuple[Call, tuple[torch.Tensor, ...]]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing compiles here; being kept from it would load the compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            raise NotReplayableError(f"{func} writes to what it is given")
        returned = func(*args, **kwargs)
        results = tuple(flat(returned))
        given = tuple(self._plain(argument) for argument in args)
        keywords = {name: self._plain(one) for name, one in kwargs.items()}
        number = self.first + len(self.calls)
        types = tuple(Type(_NAMES[result.dtype], tuple(result.shape), tuple(result.stride())) for result in results)
        self.names |= {id(one): Ref(number, at) for at, one in enumerate(results)}
        self.calls.append(
            (
                Call(str(func), given, keywords, types),
                tuple(lifted(result) if self.exact else result for result in results),
            )
        )
        self._alive = [*getattr(self, "_alive", []), *results]
        return returned

    def _plain(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            if id(item) not in self.names:
                raise NotReplayableError("an operation that is opened made a tensor that is not known")
            return self.names[id(item)]
        if isinstance(item, list | tuple):
            return tuple(self._plain(one) for one in item)
        for kind, tag in ((torch.dtype, "dtype"), (torch.device, "device"), (torch.layout, "layout"),
                          (torch.memory_format, "memory_format")):  # fmt: skip
            if isinstance(item, kind):
                return {tag: _NAMES.get(item, "") if tag == "dtype" else str(item).removeprefix("torch.")}
        if isinstance(item, float) and item in (float("inf"), float("-inf")):
            return {"float": "inf" if item > 0 else "-inf"}
        return item
