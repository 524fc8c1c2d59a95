"""How far a sum may be off that correct code adds up in an order and in parts of its own."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from ...core.dtypes import UNIT_ROUNDOFF
from .op_kinds import MEANS

ROUNDED = 0.42  # of a unit roundoff: the error of one rounding, in the root mean square over numbers of all sizes
BLOCKS = 8  # of the terms of a product, after each of which its sum is looked at
SPLIT = 2  # parts in which a sum of a 16-bit format may be stored before they are added: half of its terms are in one
LONG = UNIT_ROUNDOFF["f32"]  # in which shorter formats are computed with inside an operation


class Sum(NamedTuple):
    """What a sum gave, and how far it may be off, in the root mean square; None for what is no float."""

    total: Any
    error: torch.Tensor | None


def added_up(func: Any, args: Any, kwargs: Any, unit: float, grown_unit: float, long: float) -> list[Sum]:
    """What a sum gives, and how far that may be off: it grows in a dtype of `grown_unit`; one whose results are stored
    coarser than `long` may be stored in parts before."""
    squares = listed(func(*_squared(args), **_squared(kwargs)))
    found = listed(func(*args, **kwargs))
    sums = []
    for at, (total, terms) in enumerate(zip(found, squares, strict=True)):
        if not isinstance(total, torch.Tensor) or not total.is_floating_point():
            sums.append(Sum(total, None))
            continue
        count = _terms(func, args, kwargs, at, total)
        terms = terms / count if func._opname in MEANS else terms
        variance = total * total
        if count > 1:
            variance = variance.mul_(count / 3).add_(terms, alpha=count / 6 + 1)
        for grown in (_grown(func, args, kwargs, at, total), _grown_in_blocks(func, args, at, count)):
            if grown is not None:
                torch.maximum(variance, grown, out=variance)
        variance.mul_(grown_unit**2)
        if unit > long:
            variance.add_(terms, alpha=(unit / SPLIT) ** 2)
        sums.append(Sum(total, _root(variance.clamp_min_(0.0)).mul_(ROUNDED)))
    return sums


def _terms(func: Any, args: Any, kwargs: Any, at: int, total: torch.Tensor | None) -> float:
    """How many terms a number that an operation gives is the sum of, from shapes alone; a product's by its flops."""
    tensors = [tensor for tensor in tensors_in((args, kwargs)) if tensor.is_floating_point()]
    if not tensors:
        return 1.0
    name = func._opname
    if name == "convolution_backward":
        grad, _, weight = args[:3]
        summed = weight if at == 0 else grad
        return max(1.0, float(summed.numel()) / max(1, int(summed.shape[1])))
    if total is not None and func.overloadpacket in flop_registry:
        try:
            flops = flop_registry[func.overloadpacket](*args, **kwargs, out_val=total)
            return max(1.0, float(flops) / (2 * max(1, total.numel())))
        except (TypeError, ValueError, IndexError, AssertionError, AttributeError):
            pass
    if name == "cumsum":
        return float(tensors[0].shape[args[1]]) if tensors[0].ndim else 1.0
    largest = max(tensor.numel() for tensor in tensors)
    given = total.numel() if total is not None else largest
    if name in ("scatter_add", "scatter_add_", "index_add", "index_add_", "index_put", "index_put_",
                "_unsafe_index_put", "embedding_dense_backward"):  # fmt: skip
        return float(max(2, tensors[-1].numel() // max(1, tensors[-1].shape[-1] if tensors[-1].ndim else 1)))
    return max(1.0, largest / max(1, given))


def _grown(func: Any, args: Any, kwargs: Any, at: int, total: torch.Tensor) -> torch.Tensor | None:
    """The error of a sum whose terms are added one by one in the order in which they lie, squared, in roundings: a sum
    that cancels in the end may have been large before, and terms that are alike are all rounded the same way."""
    name, data = func._opname, args[0]
    if name == "convolution_backward" and at == 2:
        dims, count = [0, *range(2, data.ndim)], 1.0
    elif name in ("sum", "mean") and data.ndim and data.is_floating_point():
        asked = args[1] if len(args) > 1 else kwargs.get("dim")
        dims = list(range(data.ndim)) if asked in (None, []) else [asked] if isinstance(asked, int) else list(asked)
        count = float(prod(data.shape[one] for one in dims)) if name == "mean" else 1.0
    else:
        return None
    dims = [one % data.ndim for one in dims]
    kept = [number for number in range(data.ndim) if number not in dims]
    rows = data.permute(*kept, *dims).reshape(*(data.shape[number] for number in kept), -1)
    found = (rows.cumsum(-1) / count).square().sum(-1)
    added = np.add.accumulate(rows.numpy().astype(np.float32), axis=-1)[..., -1] if rows.shape[-1] else 0.0
    off = (torch.as_tensor(added, dtype=torch.float64) - rows.sum(-1)) / (count * ROUNDED * LONG)
    found = torch.maximum(found, torch.where(torch.isfinite(off), off, 0.0).square())
    return found.reshape(total.shape)


def _grown_in_blocks(func: Any, args: Any, at: int, count: float) -> torch.Tensor | None:
    """The same of a sum of products, by what it has come to after each of several blocks of its terms: neighbouring
    terms are alike, so that a sum may wander further from zero than terms of random signs would take it."""
    size = _summed_first(func, args, at)
    if size is None or len(_slices(size)) < 2:
        return None
    blocks = _blocks(func, args, at)
    before = next(blocks)
    found, spare = before * before, torch.empty_like(before)
    for now in blocks:
        now += before
        torch.add(before, now, out=spare).mul_(before)  # a (a + b) + b^2
        found.add_(spare).addcmul_(now, now)
        before = now
    return found.mul_(count / len(_slices(size)) / 3)


def _summed_first(func: Any, args: Any, at: int) -> int | None:
    """How long the axis is that a sum of products sums first; None for what is none."""
    name = func._opname
    if name in ("mm", "bmm"):
        length: int = args[0].shape[-1]
        return length
    if name == "convolution" and not args[6] and args[8] == 1:
        return int(args[0].shape[1])
    if name == "convolution_backward" and not args[7] and args[9] == 1 and at < 2:
        return int(args[0].shape[1 - at])
    return None


def _blocks(func: Any, args: Any, at: int) -> Iterator[torch.Tensor]:
    """A sum of products as several, one for each of some blocks of the axis that it sums first."""
    name = func._opname
    if name == "mm":
        data, weight = args[:2]
        yield from (data[:, some] @ weight[some] for some in _slices(data.shape[1]))
    if name == "bmm":
        data, weight = args[:2]
        yield from (data[:, :, some] @ weight[:, some] for some in _slices(data.shape[2]))
    if name == "convolution":
        data, weight, _, *sizes = args
        yield from (func(data[:, some], weight[:, some], None, *sizes) for some in _slices(data.shape[1]))
    if name == "convolution_backward":
        gradient, data, weight, *sizes, _ = args
        if at == 0:
            some_of = [(gradient[:, some], data, weight[some]) for some in _slices(gradient.shape[1])]
        else:
            some_of = [(gradient[some], data[some], weight) for some in _slices(gradient.shape[0])]
        yield from (func(*some, *sizes, [at == 0, at == 1, False])[at] for some in some_of)


def _root(squares: torch.Tensor) -> torch.Tensor:
    """The roots of a few numbers, in this thread: torch's library wakes all others for them, and waits."""
    return torch.from_numpy(np.asarray(np.sqrt(squares.numpy())))


def _slices(size: int) -> list[slice]:
    """Blocks of an axis, none shorter than two."""
    step = max(2, -(-size // BLOCKS))
    return [slice(start, start + step) for start in range(0, size, step)]


def _squared(item: Any) -> Any:
    """Arguments with every float tensor squared, and plain factors too."""
    return tree_map_only(torch.Tensor, lambda one: one * one if one.is_floating_point() else one, item)


def listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def tensors_in(item: Any) -> list[torch.Tensor]:
    """Every tensor in arguments or results."""
    return [leaf for leaf in tree_leaves(item) if isinstance(leaf, torch.Tensor)]
