"""What a loss is the mean or the sum of, read from the node of the graph that reduced it."""

from __future__ import annotations

from typing import Any

import torch

_MEAN, _SUM = 1, 2  # torch's own numbers for reductions
_PASS = ("ToCopyBackward", "ViewBackward", "SqueezeBackward", "CloneBackward", "AliasBackward", "UnsqueezeBackward")


def gradient_of(loss: torch.Tensor) -> dict[str, str | int] | None:
    """`{"reduction", "batch"}` of a loss whose last operation says it; None where that cannot be known for certain.

    `batch` is the number of terms that a mean is taken over: samples, tokens or elements, as the loss counts them.
    """
    node = loss.grad_fn
    while node is not None and node.name().startswith(_PASS):
        node = node.next_functions[0][0]
    if node is None:
        return None
    name = node.name()
    if name.startswith("MeanBackward"):
        return _said("mean", _size(node, "_saved_self_sym_numel"))
    if name.startswith("SumBackward"):
        return _said("sum", 1)
    reduction = getattr(node, "_saved_reduction", None)
    if reduction not in (_MEAN, _SUM):
        return None
    if reduction == _SUM:
        return _said("sum", 1)
    if name.startswith("NllLoss"):
        if _is_hooked(node, "target") or _is_hooked(node, "weight") or node._saved_weight is not None:  # type: ignore[attr-defined]
            return None  # a weighted mean divides by the sum of the weights
        # Counted from the targets: torch's own count has the type of the logits, and bfloat16 cannot hold 1001.
        target, ignored = node._saved_target, node._saved_ignore_index  # type: ignore[attr-defined]
        return _said("mean", int((target != ignored).sum()))
    return None if _is_hooked(node, "self") else _said("mean", _size(node, "_saved_self"))


def _is_hooked(node: Any, name: str) -> bool:
    """Whether getting at a saved tensor would run code: the user's own, or a checkpoint's, which computes it again."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    return raw is None or getattr(raw, "unpack_hook", raw) is not None  # what cannot be asked may well be hooked


def _said(reduction: str, batch: int | None) -> dict[str, str | int] | None:
    return {"reduction": reduction, "batch": batch} if batch else None


def _size(node: Any, name: str) -> int | None:
    found = getattr(node, name, None)
    return found.numel() if isinstance(found, torch.Tensor) else found
