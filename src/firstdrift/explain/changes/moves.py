"""Axes, parts and rows taken otherwise: merged in another order, interleaved, exchanged, shifted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import prod

from ...program.calls import Ref
from ...program.edits import local, made_by
from ..naming import CHANGED, interleave_label, merge_label, parts_label, position_label
from ..one_program.around import ATTENTION, Around, Change, base

MOST_AXES = 4  # whose orders are all tried
MOST_PARTS = 4
PARTED = frozenset({"split", "unbind", "chunk", "split_with_sizes"})
VIEWS = frozenset({"view", "_unsafe_view", "reshape", "_reshape_alias"})


def merges(around: Around) -> Iterator[Change]:
    """Axes are merged into one, or one is split, in another order."""
    if around.op not in VIEWS:
        return
    x = around.tensors[0]
    source = around.rerun.shape(x)
    for start, count, parts in _blocks(source, around.shape):
        if count > 1 and len(parts) == 1:
            for order in _others(count):
                axes = (*range(start), *(start + number for number in order), *range(start + count, len(source)))
                edit = around.instead(
                    made_by("permute.default", x, axes), made_by("reshape.default", local(0), around.shape)
                )
                said = f"axes {start} to {start + count - 1} are merged in the order {order}"
                label = merge_label(around, tuple(source[start + one] for at, one in enumerate(order) if at != one))
                yield Change(f"merge {order}", label, said, edit, 5.0, parameters={"order": list(order)})
        if count == 1 and len(parts) > 1:
            for order in _others(len(parts)):
                sizes = (*source[:start], *(parts[number] for number in order), *source[start + 1 :])
                back = [order.index(number) for number in range(len(order))]
                axes = (*range(start), *(start + number for number in back), *range(start + len(parts), len(sizes)))
                edit = around.instead(made_by("reshape.default", x, sizes), made_by("permute.default", local(0), axes))
                said = f"axis {start} is split into {'x'.join(map(str, parts))} in the order {order}"
                label = merge_label(around, tuple(parts[one] for at, one in enumerate(order) if at != one))
                yield Change(f"split {order}", label, said, edit, 5.0, parameters={"order": list(order)})


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


def turns(around: Around) -> Iterator[Change]:
    """Axes stay where they are, or go elsewhere."""
    if around.op not in ("permute", "transpose", "t"):
        return
    x = around.tensors[0]
    source = around.rerun.shape(x)
    if len(source) > MOST_AXES + 1:
        return
    for order in permutations(range(len(source))):
        if tuple(source[number] for number in order) == around.shape:
            label = "transpose" if len(source) == 2 else "axis-order"
            edit, said = around.instead(made_by("permute.default", x, order)), f"the axes are in the order {order}"
            yield Change(f"order {order}", label, said, edit, 5.0, parameters={"order": list(order)})
    if source != around.shape:
        label = "head-permutation" if around.in_attention else "transpose" if len(source) == 2 else "axis-order"
        said = "its memory is read in the other shape, without moving axes"
        edit = around.instead(made_by("clone.default", x, memory_format={"memory_format": "contiguous_format"}),
                              made_by("reshape.default", local(0), around.shape))  # fmt: skip
        yield Change("reshaped", label, said, edit, 3.0)


def parts(around: Around) -> Iterator[Change]:
    """Parts of a tensor are taken in another order, or interleaved."""
    count = len(around.call.results)
    shapes = {around.rerun.shape(Ref(around.number, at)) for at in range(count)}
    if around.op not in PARTED or not 1 < count <= MOST_PARTS or len(shapes) > 1:
        return
    for order in _others(count):
        said = f"the {count} parts are taken in the order {order}"
        edit = around.instead(around.call, results=tuple(local(0, number) for number in order))
        yield Change(f"parts {order}", parts_label(around, count), said, edit, 3.0, parameters={"order": list(order)})
    if around.op != "unbind":
        x = around.tensors[0]
        axes = [axis for axis, (a, b) in enumerate(zip(around.rerun.shape(x), around.shape, strict=True)) if a != b]
        for axis in axes[:1]:
            calls = tuple(made_by("slice.Tensor", x, axis, number, None, count) for number in range(count))
            edit = around.instead(*calls, results=tuple(local(number) for number in range(count)))
            said = f"{count} interleaved parts instead of {count} consecutive ones"
            yield Change("interleaved", interleave_label(around), said, edit, 4.0)
            yield from _in_blocks(around, axis)


def _in_blocks(around: Around, axis: int) -> Iterator[Change]:
    """Parts that alternate in blocks: of every head one of each."""
    x, count = around.tensors[0], len(around.call.results)
    shape = around.rerun.shape(x)
    size = shape[axis] // count
    for block in (number for number in range(2, size) if size % number == 0):
        read = made_by("reshape.default", x, (*shape[:axis], size // block, count, block, *shape[axis + 1 :]))
        calls = [read]
        for at in range(count):
            calls += [made_by("select.int", local(0), axis + 1, at),
                      made_by("reshape.default", local(len(calls)), around.shape)]  # fmt: skip
        edit = around.instead(*calls, results=tuple(local(2 + 2 * at) for at in range(count)))
        said = f"the {count} parts alternate in blocks of {block}"
        yield Change(f"blocks {block}", parts_label(around, count), said, edit, 5.0, parameters={"block": block})


def joins(around: Around) -> Iterator[Change]:
    """Tensors are joined in another order, or interleaved."""
    if around.op not in ("cat", "stack"):
        return
    tensors = around.tensors
    if not 1 < len(tensors) <= MOST_PARTS:
        return
    for order in _others(len(tensors)):
        edit, said = around.given(0, tuple(tensors[number] for number in order)), f"joined in the order {order}"
        yield Change(f"join {order}", "concat-order", said, edit, parameters={"order": list(order)})
    if around.op == "cat" and len({around.rerun.shape(tensor) for tensor in tensors}) == 1:
        axis = around.call.args[1] if len(around.call.args) > 1 else 0
        assert isinstance(axis, int)
        axis %= len(around.shape)
        edit = around.instead(made_by("stack.default", tuple(tensors), axis + 1),
                              made_by("reshape.default", local(0), around.shape))  # fmt: skip
        yield Change("mixed", interleave_label(around), "interleaved instead of joined one behind another", edit, 4.0)


def repeats(around: Around) -> Iterator[Change]:
    """Repeated as a whole instead of one by one, or the other way round."""
    if around.op not in ("repeat", "_unsafe_view", "view", "repeat_interleave"):
        return
    source = _repeated(around)
    if source is None:
        return
    ref, axis, times = source
    label = "gqa-order" if ATTENTION & {base(call) for call in around.rerun.calls.values()} else "interleave"
    sizes = tuple(times if number == axis else 1 for number in range(len(around.shape)))
    whole = around.instead(made_by("repeat.default", ref, sizes))
    each = around.instead(made_by("repeat_interleave.self_int", ref, times, axis))
    yield Change("tiled", label, "the whole is repeated instead of each one", whole, 3.0)
    yield Change("each", label, "each one is repeated instead of the whole", each, 3.0)


def _repeated(around: Around) -> tuple[Ref, int, int] | None:
    """What a tensor repeats along one axis: the source, the axis and how often."""
    left, seen = [around], 0
    while left and seen < 6:
        one, seen = left.pop(), seen + 1
        for ref in one.tensors[:1]:
            shape = around.rerun.shape(ref)
            if len(shape) == len(around.shape):
                more = [axis for axis, (a, b) in enumerate(zip(shape, around.shape, strict=True)) if a != b]
                if len(more) == 1 and around.shape[more[0]] % max(shape[more[0]], 1) == 0:
                    return ref, more[0], around.shape[more[0]] // max(shape[more[0]], 1)
            if ref.node in around.rerun.calls and ref not in around.rerun.given:
                left.append(Around(around.rerun, ref.node))
    return None


def slices(around: Around) -> Iterator[Change]:
    """A slice is taken one row earlier or later; one half is read as every other element."""
    if around.op != "slice":
        return
    x = around.tensors[0]
    size = around.rerun.shape(x)
    named = {name: one.value for name, one in around.settings.items()}
    axis = int(named.get("dim") or 0) % len(size)
    length, start, step = around.shape[axis], int(named.get("start") or 0), int(named.get("step") or 1)
    start = start % size[axis] if size[axis] else 0
    for by in (1, -1, 2, -2):
        first = start + by
        if length < size[axis] and first >= 0 and first + (length - 1) * step < size[axis]:
            edit = around.instead(made_by("slice.Tensor", x, axis, first, first + (length - 1) * step + 1, step))
            table = around.is_parameter(x) and len(size) > 1
            said = f"what is sliced begins {abs(by)} {'later' if by > 0 else 'earlier'}"
            label = "position-shift" if table else "index-shift"
            yield Change(f"shift {by}", label, said, edit, 4.0, parameters={"shift": by})
    if 2 * length == size[axis] and axis == len(size) - 1:
        label = interleave_label(around)
        if step == 1:
            edit = around.instead(made_by("slice.Tensor", x, axis, int(start > 0), None, 2))
            yield Change("every other", label, "every other element instead of one half", edit, 3.0)
        elif step == 2:
            edit = around.instead(made_by("slice.Tensor", x, axis, length * (start % 2), length * (start % 2 + 1)))
            yield Change("every other", label, "one half instead of every other element", edit, 3.0)
        edit = around.instead(made_by("slice.Tensor", x, axis, 0 if start else length, length if start else None))
        if step == 1:
            yield Change("other half", "swapped-halves", "the other half is read", edit, 3.0)


def rows(around: Around) -> Iterator[Change]:
    """Rows are looked up one further, or one before; whole numbers are others."""
    if around.kind != "i" or around.op in ("argmax", "unsqueeze", "view", "expand", "clone", "detach", "alias"):
        return
    for by in (1, -1, 2, -2):
        said = f"what {around.written} gives is {abs(by)} {'more' if by > 0 else 'less'}"
        edit = around.then("add.Tensor", by)
        yield Change(f"rows {by}", position_label(around, False), said, edit, 4.0, parameters={"shift": by})


def counted(around: Around) -> Iterator[Change]:
    """Positions are counted from zero, whatever they are made of."""
    if around.kind not in "if" or not around.shape or not _is_counted(around):
        return
    size = around.shape[-1]
    if size > 1:
        edit = around.instead(made_by("arange.default", size), made_by("expand.default", local(0), around.shape))
        label = position_label(around, False) if around.in_tables or "embedding" in around.after else CHANGED
        said = f"positions are 0 to {size - 1} in every row instead of what {around.written} gives"
        yield Change("counted", label, said, edit, 5.0)


def _is_counted(around: Around) -> bool:
    """Whether whole numbers are computed, or counted from another than zero."""
    if around.op != "arange":
        return around.kind == "i"
    start = around.settings.get("start")
    return start is not None and bool(start.value)


def rolls(around: Around) -> Iterator[Change]:
    """Rolled the other way, or not at all."""
    if around.op != "roll":
        return
    shifts = around.call.args[1]
    back = tuple(-shift for shift in shifts) if isinstance(shifts, tuple | list) else shifts
    yield Change("back", "index-shift", "rolled the other way", around.given(1, back), 3.0)
    yield Change("unrolled", "index-shift", "not rolled", around.passing(around.tensors[0]), 3.0)


TABLE = (merges, turns, parts, joins, repeats, slices, rows, counted, rolls)
