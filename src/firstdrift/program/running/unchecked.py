"""Kernels that read memory as their arguments say and do not check that these fit one another: a changed program calls
them with the shapes of the recorded call, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..calls import Call, NotReplayableError, Ref

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
