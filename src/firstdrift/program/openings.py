"""Larger operations as the smaller calls that they consist of, written down while they are made.

Torch's own decompositions say what an operation consists of; `running/opened.py` where it has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .call_recording import CallRecording
from .calls import Call, NotReplayableError, Ref
from .op_facts import flat
from .running.calling import FAILURES, operation, with_copies
from .running.opened import opened
from .torch_values import decoded, lifted

# What consists of several operations that mean something by themselves.
LARGE = frozenset({
    "_log_softmax", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "_softmax",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention", "_thnn_fused_lstm_cell", "addmm",
    "baddbmm", "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "mkldnn_rnn_layer",
    "mse_loss", "native_batch_norm", "native_group_norm", "native_layer_norm", "nll_loss_forward", "silu",
    "smooth_l1_loss", "std", "var", "var_mean", "logsumexp", "hardswish", "mish", "addcmul", "addcdiv", "lerp", "rsub",
})  # fmt: skip


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
        recording = CallRecording(first, id, functional=True)

        def named(ref: Ref) -> torch.Tensor:
            tensor: torch.Tensor = torch.ops.aten.alias(value(ref))
            recording.know(tensor, ref)
            return tensor

        args = decoded(call.args, named, exact=exact)
        kwargs = {name: decoded(item, named, exact=exact) for name, item in call.kwargs.items()}
        given, keywords = with_copies(facts, args, kwargs)
        if any(one is not other for one, other in zip(flat(given), flat(args), strict=True)):
            return None
        with torch.no_grad(), recording:
            results = opened(func, given, keywords, is_missing=True)
        if not results or len(recording.calls) < 2:
            return None
        own = recording.ref(results[0])
    except (*FAILURES, NotReplayableError):
        return None
    made = recording.results
    if exact:
        made = [tuple(map(lifted, some)) for some in made]
    known = (own, *map(recording.find, results[1:]))
    return Opening(tuple(zip(recording.calls, made, strict=True)), known) if own.node >= first else None
