"""Calls of a changed program: made, and brought to the shape of what they stand for.

Some kernels read memory as their arguments say and do not check that these fit one another: a changed program calls
them with the shapes of the recorded call, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..calls import Call, NotReplayableError, Ref
from ..edits import ROUNDED
from ..op_facts import results_of, written_by
from ..torch_values import TORCH_DTYPES, decoded, lifted
from .calling import made_otherwise, operation, with_copies

PREFIXES = ("_scaled_dot_product_", "_flash_attention", "_efficient_attention", "_cudnn", "cudnn", "mkldnn", "miopen")
MASKS = ("attn_mask", "attn_bias")

MOST_COUNTED = 1 << 22  # numbers, in a row

Shape = tuple[int, ...]


def refuse_unfit(call: Call, value: Callable[[Ref], Any], recorded: Call | None, known: Callable[[Ref], Any]) -> None:
    """Raise where a call of such a kernel is given a tensor of another shape than the recorded call was given there.

    A tensor may be left out; a mask may be added that fits the scores.
    """
    if not call.op.partition(".")[2].startswith(PREFIXES):
        return
    if recorded is None or recorded.op != call.op:
        raise NotReplayableError(f"{call.op} checks nothing, and was not called here")
    shapes, before = _shapes(call, value), _shapes(recorded, known)
    for place, shape in shapes.items():
        if shape != before.get(place) and not (place not in before and _is_mask(place, shape, before)):
            raise NotReplayableError(f"{call.op} checks nothing, and {place} has another shape than was recorded")


def refuse_long(call: Call) -> None:
    """Raise where a changed call would count up to a number that is no size: that could fill the memory."""
    if call.op.split(".")[1] != "arange":
        return
    numbers = [float(argument) for argument in call.args[:3] if isinstance(argument, int | float)]
    start, end, step = (
        (0.0, *numbers, 1.0) if len(numbers) == 1 else (*numbers, 1.0)[:3] if numbers else (0.0, 0.0, 1.0)
    )
    if abs(end - start) > MOST_COUNTED * abs(step):
        raise NotReplayableError(f"{call.op} would count to {end:g}")


def called(call: Call, value: Any, exact: bool) -> list[torch.Tensor]:
    """What a call of a fragment gives; arrays among its arguments are tensors that it is given."""
    args = decoded(call.args, value, exact=exact)
    kwargs = {name: decoded(item, value, exact=exact) for name, item in call.kwargs.items()}
    if call.op == ROUNDED:
        return [args[0].to(TORCH_DTYPES[str(args[1])]).to(args[0].dtype)]
    func, facts = operation(call.op)
    args, kwargs = with_copies(facts, args, kwargs)
    try:
        results = results_of(func(*args, **kwargs), written_by(facts, tuple(args), kwargs))
    except RuntimeError as error:
        found = made_otherwise(func, facts, args, kwargs, call, error)
        if found is None:
            raise
        results = list(found)
    return [lifted(result) for result in results] if exact else results


def like(tensor: torch.Tensor, other: torch.Tensor, at: int) -> torch.Tensor:
    """A tensor that was asked to stand for another, broadcast to its shape; what a kernel keeps beside its first result
    may be of another shape, and is left as it was."""
    if tensor.shape != other.shape:
        if at and tensor.dim() != other.dim():
            return other
        if at and any(one not in (1, size) for one, size in zip(tensor.shape, other.shape, strict=True)):
            return other
        tensor = _expanded(tensor, other.shape)
    moved = tensor.to(other.dtype)
    is_cut = tensor.is_floating_point() and not other.is_floating_point()  # fractions instead of whole numbers stay
    return tensor if is_cut and not torch.equal(moved.to(tensor.dtype), tensor) else moved


def _expanded(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A tensor in another shape; as it is, where it cannot be: what reads it may take it so."""
    whole = len(shape) == tensor.dim() and all(a in (1, b) for a, b in zip(tensor.shape, shape, strict=True))
    last = shape[len(shape) - tensor.dim() :]
    shorter = len(shape) > tensor.dim() and all(a in (1, b) for a, b in zip(tensor.shape, last, strict=True))
    return tensor.expand(shape) if whole or shorter else tensor


def _shapes(call: Call, value: Callable[[Ref], Any]) -> dict[int | str, Shape]:
    """The shapes of the tensors that a call is given, by place or name."""
    named: list[tuple[int | str, Any]] = [*enumerate(call.args), *call.kwargs.items()]
    found: dict[int | str, Shape] = {}
    for place, item in named:
        items = item if isinstance(item, list | tuple) and not isinstance(item, Ref) else [item]
        for at, one in enumerate(items):
            tensor = value(one) if isinstance(one, Ref) else one
            if isinstance(tensor, np.ndarray | torch.Tensor):
                found[place if len(items) == 1 else f"{place}.{at}"] = tuple(tensor.shape)
    return found


def _is_mask(place: int | str, shape: Shape, before: Mapping[int | str, Shape]) -> bool:
    """Whether a tensor is a mask of the scores that the first two arguments make."""
    query, key = before.get(0, ()), before.get(1, ())
    if place not in MASKS or len(query) < 2 or len(key) < 2:
        return False
    scores = (*query[:-1], key[-2])
    try:
        return tuple(np.broadcast_shapes(shape, scores)) == scores
    except ValueError:
        return False
