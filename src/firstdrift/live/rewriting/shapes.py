"""Axes, halves and rows taken otherwise: merged in another order, interleaved, exchanged, shifted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from math import prod
from typing import Any

import torch

from .view import SOFTMAX, Rewrite, Rewrites, View, is_parameter

MOST_AXES = 4  # whose orders are all tried
MOST_PARTS = 4


def merges(view: View) -> Iterator[Rewrite]:
    """Axes are merged into one, or one is split, in another order."""
    source = view.tensors[0]
    for start, count, parts in _blocks(source.shape, view.result.shape):
        if count > 1 and len(parts) == 1:
            for order in _others(count):
                said = f"axes {start} to {start + count - 1} are merged in the order {order}"
                label = _merge_label(view, source.shape[start : start + count])
                yield Rewrite(
                    f"merge {order}", label, said, _merged(view, start, order), parameters={"order": list(order)}
                )
        if count == 1 and len(parts) > 1:
            for order in _others(len(parts)):
                said = f"axis {start} is split into {'x'.join(map(str, parts))} in the order {order}"
                label = _merge_label(view, parts)
                yield Rewrite(
                    f"split {order}", label, said, _split(start, parts, order), parameters={"order": list(order)}
                )  # fmt: skip


def _blocks(source: Sequence[int], made: Sequence[int]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Which axes of a tensor become which of another: first axis, how many, and the sizes they become."""
    i = j = 0
    while i < len(source) and j < len(made):
        first, other = i, j
        i, j = i + 1, j + 1
        while prod(source[first:i]) != prod(made[other:j]) and (i < len(source) or j < len(made)):
            if prod(source[first:i]) < prod(made[other:j]) and i < len(source):
                i += 1
            elif j < len(made):
                j += 1
            else:
                return
        yield first, i - first, tuple(made[other:j])


def _others(count: int) -> Iterator[tuple[int, ...]]:
    orders = permutations(range(count)) if count <= MOST_AXES else ()
    return (order for order in orders if order != tuple(range(count)))


def _merge_label(view: View, sizes: Sequence[int]) -> str:
    if {"expand", "repeat", "tile"} & view.before and SOFTMAX & view.after:
        return "gqa-order"
    if 2 in sizes and view.is_rotation and view.tensors[0].dim() > 3:  # behind the splitting into heads
        return "rope-interleave"
    if 3 in sizes and view.in_attention:
        return "qkv-order"
    if view.in_attention:
        return "head-permutation"
    return "axis-order"


def _merged(view: View, start: int, order: Sequence[int]) -> Any:
    def call(tensor: torch.Tensor, *_: Any, **__: Any) -> Any:
        rest = tensor.dim() - start - len(order)
        axes = [*range(start), *(start + one for one in order), *range(tensor.dim() - rest, tensor.dim())]
        return tensor.permute(axes).reshape(view.result.shape)

    return call


def _split(start: int, parts: Sequence[int], order: Sequence[int]) -> Any:
    def call(tensor: torch.Tensor, *_: Any, **__: Any) -> Any:
        sizes = [parts[one] for one in order]
        split = tensor.reshape(*tensor.shape[:start], *sizes, *tensor.shape[start + 1 :])
        back = [order.index(one) for one in range(len(order))]
        rest = range(start + len(parts), split.dim())
        return split.permute(*range(start), *(start + one for one in back), *rest)

    return call


def turns(view: View) -> Iterator[Rewrite]:
    """Axes stay where they are, or go elsewhere."""
    source = view.tensors[0]
    if source.dim() > MOST_AXES + 1:
        return
    shape = view.result.shape
    for order in permutations(range(source.dim())):
        if tuple(source.shape[one] for one in order) == tuple(shape):
            said = f"the axes are in the order {order}"
            label = "transpose" if source.dim() == 2 else "axis-order"
            yield Rewrite(f"order {order}", label, said, lambda *args, order_=order, **_: args[0].permute(order_))
    same = source.numel() == view.result.numel() and tuple(source.shape) != tuple(shape)
    if same:
        label = "head-permutation" if view.in_attention else "axis-order"
        said = "its memory is read in the other shape, without moving axes"
        yield Rewrite("reshaped", label, said, lambda *args, **_: args[0].reshape(shape))


def parts(view: View) -> Iterator[Rewrite]:
    """Parts of a tensor are taken in another order, or interleaved."""
    results = view.call.results
    count = len(results)
    if not 1 < count <= MOST_PARTS or len({one.shape for one in results}) > 1:
        return
    three = "qkv-order" if view.in_attention else "gate-order"
    label = "swapped-halves" if count == 2 else three
    for order in _others(count):
        said = f"the {count} parts are taken in the order {order}"

        def call(*args: Any, order: Sequence[int] = order, **kwargs: Any) -> Any:
            made = view.call.func(*args, **kwargs)
            return tuple(made[one] for one in order)

        yield Rewrite(f"parts {order}", label, said, call, parameters={"order": list(order)})
    axis = _parted_axis(view)
    if axis is not None:
        said = f"{count} interleaved parts instead of {count} consecutive ones"
        kind = "rope-interleave" if view.is_rotation else "interleave"
        yield Rewrite("interleaved", kind, said, lambda *args, **_: _every(args[0], axis, count))


def _every(tensor: torch.Tensor, axis: int, count: int) -> tuple[torch.Tensor, ...]:
    last = tensor.movedim(axis, -1)
    return tuple(last[..., one::count].movedim(-1, axis) for one in range(count))


def _parted_axis(view: View) -> int | None:
    source, made = view.tensors[0], view.call.results[0]
    if source.dim() != made.dim():
        return None
    axes = [axis for axis in range(source.dim()) if source.shape[axis] != made.shape[axis]]
    return axes[0] if len(axes) == 1 else None


def joins(view: View) -> Iterator[Rewrite]:
    """Tensors are joined in another order."""
    tensors = view.argument(0, "tensors")
    count = len(tensors)
    if not 1 < count <= MOST_PARTS:
        return
    for order in _others(count):
        said = f"joined in the order {order}"

        def call(tensors: Any, *args: Any, order: Sequence[int] = order, **kwargs: Any) -> Any:
            return view.call.func([tensors[one] for one in order], *args, **kwargs)

        yield Rewrite(f"join {order}", "concat-order", said, call, parameters={"order": list(order)})
    if len({one.shape for one in tensors}) == 1:
        axis = view.argument(1, "dim", 0)

        def mixed(tensors: Any, *_: Any, **__: Any) -> Any:
            return torch.stack(list(tensors), axis + 1 if axis >= 0 else tensors[0].dim() + axis + 1).reshape(
                view.result.shape
            )

        yield Rewrite("mixed", "interleave", "interleaved instead of joined one behind another", mixed)


def repeats(view: View) -> Iterator[Rewrite]:
    """Repeated as a whole instead of one by one, or the other way round."""
    source, made = view.tensors[0], view.result
    if source.dim() != made.dim():
        return
    label = "gqa-order" if SOFTMAX & view.after else "interleave"
    for axis in range(source.dim()):
        times = made.shape[axis] // max(source.shape[axis], 1)
        if times > 1:
            sizes = [times if one == axis else 1 for one in range(source.dim())]
            yield Rewrite(
                "tiled",
                label,
                "the whole is repeated instead of each one",
                lambda *a, sizes_=sizes, **_: a[0].repeat(sizes_),
            )
            yield Rewrite(
                "each", label, "each one is repeated instead of the whole",
                lambda *a, axis_=axis, times_=times, **_: a[0].repeat_interleave(times_, axis_),
            )  # fmt: skip


def slices(view: View) -> Iterator[Rewrite]:
    """A slice is taken one row earlier or later."""
    source, index = view.given[0][:2]
    if not isinstance(source, torch.Tensor):
        return
    items = index if isinstance(index, tuple) else (index,)
    table = is_parameter(view.call.args[0]) or not view.call.reads
    for at, item in enumerate(items):
        for by in (1, -1, 2, -2):
            moved = _moved(item, by)
            if moved is not None:
                label = "position-shift" if table and source.dim() > 1 else "index-shift"
                said = f"what is sliced begins {abs(by)} {'later' if by > 0 else 'earlier'}"
                others = (*items[:at], moved, *items[at + 1 :])
                yield Rewrite(
                    f"shift {at} {by}", label, said, lambda *a, others_=others, **_: _exactly(a[0][others_], view),
                    parameters={"shift": by},
                )  # fmt: skip
    yield from _halves(view, source, items)


def _exactly(tensor: torch.Tensor, view: View) -> torch.Tensor:
    """A slice that runs off the end is none."""
    if tensor.shape != view.result.shape:
        raise IndexError
    return tensor


def _moved(item: Any, by: int) -> Any:
    if isinstance(item, int) and not isinstance(item, bool):
        return item + by
    if (
        not isinstance(item, slice)
        or item == slice(None)
        or any(isinstance(one, torch.Tensor) for one in (item.start, item.stop))
    ):
        return None
    start = (item.start or 0) + by
    stop = None if item.stop is None else item.stop + by
    crosses = (item.start or 0) >= 0 > start or (stop is not None and item.stop < 0 <= stop)
    return None if crosses else slice(start, stop, item.step)


def _halves(view: View, source: torch.Tensor, items: tuple[Any, ...]) -> Iterator[Rewrite]:
    """One half of the last axis read as every other element."""
    size, made = source.shape[-1], view.result.shape[-1] if view.result.dim() else 0
    last = items[-1] if items else None
    if (
        view.result.dim() != source.dim()
        or 2 * made != size
        or not isinstance(last, slice)
        or last.step not in (None, 1)
    ):
        return
    offset = 1 if (last.start or 0) > 0 or (last.start or 0) < 0 else 0
    label = "rope-interleave" if view.is_rotation else "interleave"
    yield Rewrite("every other", label, "every other element instead of one half", lambda *a, **_: a[0][..., offset::2])


def rows(view: View) -> Iterator[Rewrite]:
    """Rows are looked up one further, or one before."""
    for at, index in enumerate(view.given[0]):
        if isinstance(index, torch.Tensor) and not index.is_floating_point() and index.dtype != torch.bool:
            for by in (1, -1, 2, -2):
                said = f"rows are looked up {abs(by)} {'later' if by > 0 else 'earlier'}"
                label = "position-shift" if "arange" in view.before or not view.call.reads else "index-shift"

                def call(*args: Any, at: int = at, by: int = by, **kwargs: Any) -> Any:
                    return view.call.func(*args[:at], args[at] + by, *args[at + 1 :], **kwargs)

                yield Rewrite(f"rows {by}", label, said, call, parameters={"shift": by})


def rolls(view: View) -> Iterator[Rewrite]:
    """Rolled the other way."""
    shifts = view.argument(1, "shifts")
    if isinstance(shifts, int):
        yield Rewrite("back", "index-shift", "rolled the other way", view.changed(shifts=(1, -shifts)))
    elif isinstance(shifts, tuple | list):
        yield Rewrite("back", "index-shift", "rolled the other way", view.changed(shifts=(1, [-one for one in shifts])))


TABLE: Mapping[str, tuple[Rewrites, ...]] = {
    **dict.fromkeys(("reshape", "view", "flatten", "unflatten"), (merges,)),
    **dict.fromkeys(("permute", "transpose", "swapaxes", "mT", "T", "t", "movedim"), (turns,)),
    **dict.fromkeys(("chunk", "split", "unbind", "tensor_split"), (parts,)),
    **dict.fromkeys(("cat", "concat", "stack"), (joins,)),
    **dict.fromkeys(("repeat_interleave", "repeat", "tile"), (repeats,)),
    "__getitem__": (slices, rows),
    **dict.fromkeys(("index_select", "embedding", "gather", "take_along_dim"), (rows,)),
    "roll": (rolls,),
}
