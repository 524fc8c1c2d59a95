"""Equations that sum over products, windows or places: products, convolutions, pools, gathers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ...program.calls import Ref
from .equations import Equation, Rule, UntranslatedError
from .program_lines import Value


def _product(e: Equation) -> Value:
    """A general product as a batched one of matrices."""
    (left, right), (left_batch, right_batch) = e.params["dimension_numbers"]
    dtype = e.out[0].dtype
    a, b = e.cast(e.tensor(0), dtype), e.cast(e.tensor(1), dtype)
    free = [[axis for axis in range(len(e.size(at))) if axis not in used]
            for at, used in ((0, {*left, *left_batch}), (1, {*right, *right_batch}))]  # fmt: skip
    rows, columns = ([e.size(at)[axis] for axis in free[at]] for at in (0, 1))
    inner = prod(e.size(0)[axis] for axis in left)
    batch = [e.size(0)[axis] for axis in left_batch]
    a = e.permuted(a, [*left_batch, *free[0], *left])
    b = e.permuted(b, [*right_batch, *right, *free[1]])
    lead = [prod(batch)] if batch else []
    a, b = e.reshaped(a, [*lead, prod(rows), inner]), e.reshaped(b, [*lead, inner, prod(columns)])
    made = e.call("bmm.default" if batch else "mm.default", [a, b], [*lead, prod(rows), prod(columns)])
    return e.reshaped(made, e.out[0].shape)


def _rows(e: Equation, mapped: Any, collapsed: Any, batching: Any) -> tuple[int, Ref] | None:
    """The one axis that an index is of, and the indices; None for what is neither rows of a table, nor one place of an
    axis, nor one element of each row."""
    shape, index = e.size(), e.size(1)
    if len(mapped) != 1 or tuple(collapsed) != tuple(mapped) or index[-1:] != (1,):
        return None
    if batching and tuple(batching) != tuple(axis for axis in range(len(shape)) if axis != mapped[0]):
        return None
    return mapped[0], e.reshaped(e.tensor(1), index[:-1])


def _gather(e: Equation) -> Value:
    """Rows of a table, or one element of each row."""
    said, shape = e.params["dimension_numbers"], e.size()
    batching = tuple(getattr(said, "operand_batching_dims", ()))
    found = _rows(e, said.start_index_map, said.collapsed_slice_dims, batching)
    if found is None:
        raise UntranslatedError
    axis, rows = found
    index = e.lines.type(rows).shape
    if batching:
        return _of_each_row(e, axis, rows, lambda at, wide: e.call("gather.default", [e.tensor(0), axis, at], wide))
    whole = [1 if one == axis else size for one, size in enumerate(shape)]
    if not index and list(e.params["slice_sizes"]) == whole:  # x[..., 0]
        one = e.reshaped(e.cast(rows, "i64"), [1])
        return e.reshaped(e.call("index_select.default", [e.tensor(0), axis, one], whole), e.out[0].shape)
    behind = tuple(range(len(index), len(index) + len(shape) - 1))
    if axis or tuple(e.params["slice_sizes"][1:]) != shape[1:] or said.offset_dims != behind:
        raise UntranslatedError
    if len(shape) == 2:
        return e.call("embedding.default", [e.tensor(0), rows], e.out[0].shape)
    return e.call("index.Tensor", [e.tensor(0), [e.cast(rows, "i64")]], e.out[0].shape)


def _scatter_add(e: Equation) -> Value:
    """What `_gather` read, added to: the gradients of an embedding and of one element of each row."""
    said, shape = e.params["dimension_numbers"], e.size()
    batching = tuple(getattr(said, "operand_batching_dims", ()))
    found = _rows(e, said.scatter_dims_to_operand_dims, said.inserted_window_dims, batching)
    if found is None:
        raise UntranslatedError
    axis, rows = found
    index = e.lines.type(rows).shape
    if batching:
        return _of_each_row(e, axis, rows, lambda at, wide: e.call(
            "scatter_add.default", [e.tensor(0), axis, at, e.reshaped(e.tensor(2), wide)], shape), shape)  # fmt: skip
    if not index and len(e.size(2)) == len(shape) - 1:
        one, whole = e.reshaped(e.cast(rows, "i64"), [1]), [1 if at == axis else n for at, n in enumerate(shape)]
        return e.call("index_add.default", [e.tensor(0), axis, one, e.reshaped(e.tensor(2), whole)], shape)
    if axis or said.update_window_dims != tuple(range(len(index), len(index) + len(shape) - 1)):
        raise UntranslatedError
    return e.call("index_put.default", [e.tensor(0), [e.cast(rows, "i64")], e.tensor(2), True], shape)


def _of_each_row(
    e: Equation, axis: int, rows: Ref, made: Callable[[Ref, list[int]], Ref], shape: tuple[int, ...] | None = None
) -> Ref:
    """One element of each row along the last axis, by torch's `gather`, whose indices have the table's rank."""
    if axis != len(e.size()) - 1:
        raise UntranslatedError
    index = e.lines.type(rows).shape
    wide = [*index, 1] if len(index) < len(e.size()) else list(index)
    return e.reshaped(made(e.reshaped(e.cast(rows, "i64"), wide), wide), shape or e.out[0].shape)


def _pool(e: Equation) -> Value:
    """The largest of each window of `[batch, ..., channel]`, or its sum, which is a mean divided by 1."""
    said, rank = e.params, len(e.size())
    sizes, strides, sides = (list(said[key]) for key in ("window_dimensions", "window_strides", "padding"))
    plain = {*said["base_dilation"], *said["window_dilation"], sizes[0], sizes[-1], strides[0], strides[-1]} == {1}
    fits = all(low == high and 2 * low <= size for (low, high), size in zip(sides, sizes, strict=True))
    if not (plain and fits) or rank not in (3, 4, 5):
        raise UntranslatedError
    axes = max(2, rank - 2)  # of one axis as of two: its mean has no divisor
    ones, first = [1] * (axes + 2 - rank), [0, rank - 1, *range(1, rank - 1)]
    x, out = e.permuted(e.tensor(0), first), [e.out[0].shape[axis] for axis in first]
    shape = list(e.lines.type(x).shape)
    x = e.reshaped(x, [*shape[:2], *ones, *shape[2:]])
    window = [[*ones, *sizes[1:-1]], [*ones, *strides[1:-1]], [*(0 for _ in ones), *(low for low, _ in sides[1:-1])]]
    wide = [*out[:2], *ones, *out[2:]]
    if "max" in e.name:
        made = e.call(f"max_pool{axes}d.default", [x, *window], wide)
    else:
        made = e.call(f"avg_pool{axes}d.default", [x, *window, False, True, 1], wide)
    return e.permuted(e.reshaped(made, out), [0, *range(2, rank), 1])


def _convolution(e: Equation) -> Value:
    said = e.params["dimension_numbers"]
    if e.params.get("batch_group_count", 1) != 1 or any(one != 1 for one in e.params["lhs_dilation"]):
        raise UntranslatedError
    dtype = e.out[0].dtype
    x = e.permuted(e.cast(e.tensor(0), dtype), said.lhs_spec)
    kernel = e.permuted(e.cast(e.tensor(1), dtype), said.rhs_spec)
    padding = [tuple(map(int, one)) for one in e.params["padding"]]
    inside = [low for low, _ in padding]
    if any(low != high or low < 0 for low, high in padding):
        sides = [side for pair in reversed(padding) for side in pair]
        size = [*e.lines.type(x).shape]
        for axis, (low, high) in enumerate(padding, 2):
            size[axis] += low + high
        x, inside = e.call("constant_pad_nd.default", [x, sides, 0], size), [0] * len(padding)
    axes = len(padding)
    args = [x, kernel, None, list(e.params["window_strides"]), inside, list(e.params["rhs_dilation"]), False,
            [0] * axes, e.params["feature_group_count"]]  # fmt: skip
    made = e.call("convolution.default", args, [e.out[0].shape[axis] for axis in said.out_spec])
    return e.permuted(made, [said.out_spec.index(axis) for axis in range(axes + 2)])


PRODUCTS: dict[str, Rule] = {
    "dot_general": _product, "conv_general_dilated": _convolution, "gather": _gather, "scatter-add": _scatter_add,
    "scatter_add": _scatter_add, "reduce_window_max": _pool, "reduce_window_sum": _pool,
}  # fmt: skip
