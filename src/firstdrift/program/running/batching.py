"""A cut run a few samples at a time: which axis of each value is the batch follows from the calls, or it is refused.

What a cut is given, but weights and state, is taken to have its samples along the first axis. Every call is then asked
where they lie in what it gives: it must treat them one by one, so that a part of the samples gives that part of the
result. A call that mixes samples (a sum over them, a norm in training), or of which this is not known, ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch

from ...core.strict_json import Json
from ...core.traces import Array
from ..calls import Call, Leaf, Ref, Step, Type, reads
from ..cuts import Cut, type_of
from .allowed import operation
from .not_replayable import NotReplayableError

_SHARED = ("weight", "weight_after", "optim", "grad", "grad_scaled")  # phases whose tensors belong to all samples


class Axis(NamedTuple):
    """The dimension along which samples lie, and how many of its elements in a row belong to each."""

    dim: int
    each: int = 1


Axes = Mapping[Ref, Axis | None]


class Taken(NamedTuple):
    """A range of a dimension of so many."""

    dim: int
    first: int
    last: int
    whole: int


class _MixedError(Exception):
    """A call treats samples together, or it is not known that it does not."""


@dataclass(frozen=True, slots=True)
class Batch:
    """How many samples a cut has, and where they lie in its values; None for what belongs to all of them."""

    samples: int
    axes: Axes

    def dim(self, ref: Ref) -> int:
        """The dimension of a value along which its samples lie."""
        axis = self.axes[ref]
        return 0 if axis is None else axis.dim


@dataclass(frozen=True, slots=True)
class Part:
    """Some samples of a step: the step with their sizes, and from where to where what it is given is taken."""

    step: Step
    taken: Mapping[Ref, Taken]


def batch_of(step: Step, cut: Cut) -> Batch:
    """Find the samples of a cut; raises NotReplayableError where a call mixes them."""
    given = {ref: site.phase not in _SHARED for ref, site in cut.given.items()}
    types = {ref: type_of(step, ref) for ref in given}
    sizes = {one.shape[0] for ref, one in types.items() if given[ref] and one is not None and one.shape}
    if len(sizes) != 1:
        raise NotReplayableError(f"what it starts from has first axes of {sorted(sizes)}, so samples cannot be told")
    (samples,) = sizes
    axes: dict[Ref, Axis | None] = {
        ref: Axis(0) if given[ref] and one is not None and one.shape else None for ref, one in types.items()
    }
    mixed: dict[Ref, str] = {}
    for number in cut.nodes:
        _follow(step, number, samples, axes, mixed)
    if cut.target in mixed:
        raise NotReplayableError(mixed[cut.target])
    if axes[cut.target] is None:
        raise NotReplayableError("what it makes has no samples")
    return Batch(samples, axes)


def _follow(step: Step, number: int, samples: int, axes: dict[Ref, Axis | None], mixed: dict[Ref, str]) -> None:
    node = step.nodes[number]
    if isinstance(node, Leaf):
        axes.setdefault(Ref(number), None)
        return
    results = [ref for at in range(len(node.results)) if (ref := Ref(number, at)) not in axes]
    why = next((mixed[ref] for ref in reads(node) if ref in mixed), None)
    found: Sequence[Axis | None] = ()
    try:
        if why is None:
            found = _axes(step, node, samples, axes)
    except _MixedError:
        why = f"{node.op} treats samples together, or it is not known that it does not"
    for ref in results:
        axes[ref] = None if why is not None else found[ref.at]
        if why is not None:
            mixed[ref] = why
    for leaf in (node.drawn or {}).values():  # what was drawn for each sample
        if why is None:
            axes[Ref(leaf)] = found[0]


def _axes(step: Step, call: Call, samples: int, axes: Axes) -> Sequence[Axis | None]:
    own = [axes[ref] for ref in reads(call)]
    if not any(own):
        return [None] * len(call.results)
    func: Any
    func, facts = operation(call.op)
    if call.drawn is not None and len(call.drawn) < len(call.results):
        raise _MixedError
    shapes = [() if one is None else one.shape for one in (type_of(step, ref) for ref in reads(call))]
    out = [() if result is None else result.shape for result in call.results]
    seen = _Seen(call, own, shapes, out, samples)
    rule = _RULES.get(facts.base)
    if rule is None and torch.Tag.pointwise not in func.tags:
        raise _MixedError
    return [_aligned(seen)] * len(out) if rule is None else rule(seen)


class _Seen(NamedTuple):
    """A call as a rule sees it: where the samples of what it reads lie, and the shapes."""

    call: Call
    axes: Sequence[Axis | None]
    shapes: Sequence[tuple[int, ...]]
    out: Sequence[tuple[int, ...]]
    samples: int

    def argument(self, at: int, name: str, default: Json = None) -> Any:
        args = self.call.args
        return args[at] if len(args) > at else self.call.kwargs.get(name, default)

    def first(self) -> Axis:
        """The samples of the first value, the only one that has any."""
        axis = self.axes[0]
        if axis is None or any(self.axes[1:]):
            raise _MixedError
        return axis


def _aligned(seen: _Seen) -> Axis:
    """Elementwise, with broadcasting from the right: all samples lie at the same place, the rest has none there."""
    dims = len(seen.out[0])
    found = {Axis(one.dim + dims - len(shape), one.each)
             for one, shape in zip(seen.axes, seen.shapes, strict=True) if one is not None}  # fmt: skip
    if len(found) != 1:
        raise _MixedError
    (axis,) = found
    for one, shape in zip(seen.axes, seen.shapes, strict=True):
        at = axis.dim - dims + len(shape)
        if one is None and at >= 0 and shape[at] != 1:
            raise _MixedError
    return axis


def _elsewhere(at: int, default: Json = None) -> Callable[[_Seen], Sequence[Axis | None]]:
    """Along one dimension, which is not that of the samples; everything has the same shape."""

    def rule(seen: _Seen) -> Sequence[Axis | None]:
        axis = _aligned(seen)
        dim = seen.argument(at, "dim", default)
        if dim is None or dim % len(seen.shapes[0]) == axis.dim:
            raise _MixedError
        return [axis] * len(seen.out)

    return rule


def _reduced(seen: _Seen) -> Sequence[Axis | None]:
    axis, count = seen.first(), len(seen.shapes[0])
    dims = seen.argument(1, "dim")
    dims = (dims,) if isinstance(dims, int) else dims
    if not dims or axis.dim in (gone := {dim % count for dim in dims}):
        raise _MixedError
    kept = seen.argument(2, "keepdim", False) is True
    return [Axis(axis.dim if kept else axis.dim - sum(dim < axis.dim for dim in gone), axis.each)] * len(seen.out)


def _viewed(seen: _Seen) -> Sequence[Axis | None]:
    """Another shape of the same numbers: samples begin where they began, and fill whole elements of one dimension."""
    axis, shape, out = seen.first(), seen.shapes[0], seen.out[0]
    before = prod(shape[: axis.dim])
    for dim, size in enumerate(out):
        if prod(out[:dim]) == before and size >= seen.samples and size % seen.samples == 0 and size > 1:
            return [Axis(dim, size // seen.samples)]
    raise _MixedError


def _turned(seen: _Seen) -> Sequence[Axis | None]:
    axis, count = seen.first(), len(seen.shapes[0])
    order = list(range(count))
    if seen.call.op.startswith("aten.permute"):
        order = [dim % count for dim in seen.call.args[1]]
    else:
        one, other = (0, count - 1) if len(seen.call.args) == 1 else (dim % count for dim in seen.call.args[1:3])
        order[one], order[other] = order[other], order[one]
    return [Axis(order.index(axis.dim), axis.each)]


def _inserted(seen: _Seen) -> Sequence[Axis | None]:
    axis, dim = seen.first(), seen.call.args[1] % len(seen.out[0])
    return [Axis(axis.dim + (dim <= axis.dim), axis.each)]


def _picked(seen: _Seen) -> Sequence[Axis | None]:
    """One element, or a range, along another dimension."""
    axis, dim = seen.first(), seen.argument(1, "dim", 0) % len(seen.shapes[0])
    if dim == axis.dim:
        raise _MixedError
    gone = len(seen.out[0]) < len(seen.shapes[0]) and dim < axis.dim
    return [Axis(axis.dim - gone, axis.each)] * len(seen.out)


def _parts(seen: _Seen) -> Sequence[Axis | None]:
    axis, dim = seen.first(), seen.argument(2, "dim", 0) % len(seen.shapes[0])
    if dim == axis.dim:
        raise _MixedError
    return [axis] * len(seen.out)


def _joined(seen: _Seen) -> Sequence[Axis | None]:
    axis = _all_alike(seen)
    if seen.argument(1, "dim", 0) % len(seen.out[0]) == axis.dim:
        raise _MixedError
    return [axis]


def _all_alike(seen: _Seen) -> Axis:
    found = set(seen.axes)
    axis = next(iter(found))
    if len(found) != 1 or axis is None:
        raise _MixedError
    return axis


def _expanded(seen: _Seen) -> Sequence[Axis | None]:
    axis = seen.first()
    return [Axis(axis.dim + len(seen.out[0]) - len(seen.shapes[0]), axis.each)]


def _product(seen: _Seen) -> Sequence[Axis | None]:
    left, right = seen.axes[-2:]
    if any(seen.axes[:-2]):
        raise _MixedError
    if left is not None and right is None and left.dim == 0:
        return [left]
    if right is not None and left is None and right.dim == 1:
        return [right]
    raise _MixedError


def _products(seen: _Seen) -> Sequence[Axis | None]:
    if seen.axes[-2:] != [seen.axes[-1]] * 2 or seen.axes[-1] is None or seen.axes[-1].dim:
        raise _MixedError
    return [seen.axes[-1]]


def _by_sample(*, shared: int | None) -> Callable[[_Seen], Sequence[Axis | None]]:
    """Sample by sample along the first dimension; `shared` is how many of its tensors have samples, None for all."""

    def rule(seen: _Seen) -> Sequence[Axis | None]:
        count = len(seen.axes) if shared is None else shared
        if any(seen.axes[count:]) or any(axis is None or axis.dim for axis in seen.axes[:count]):
            raise _MixedError
        return [seen.axes[0]] * len(seen.out)

    return rule


def _norm(seen: _Seen) -> Sequence[Axis | None]:
    axis = seen.first()
    if axis.dim >= len(seen.shapes[0]) - len(seen.call.args[1]):
        raise _MixedError
    return [axis] * len(seen.out)


def _looked_up(seen: _Seen) -> Sequence[Axis | None]:
    table, axis = seen.axes
    if table is not None or axis is None:
        raise _MixedError
    return [axis]


_SAME = ("alias", "detach", "clone", "_to_copy", "lift_fresh", "contiguous", "empty_like", "zeros_like", "ones_like",
         "full_like", "bernoulli_")  # fmt: skip
_RULES: dict[str, Callable[[_Seen], Sequence[Axis | None]]] = {
    **dict.fromkeys(_SAME, lambda seen: [seen.first()]),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), _viewed),
    **dict.fromkeys(("transpose", "permute", "t"), _turned),
    **dict.fromkeys(("select", "slice", "unbind"), _picked),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _parts),
    **dict.fromkeys(("sum", "mean", "amax", "amin"), _reduced),
    **dict.fromkeys(("mm", "addmm"), _product),
    **dict.fromkeys(("bmm", "baddbmm"), _products),
    **dict.fromkeys(("_softmax", "_log_softmax"), _elsewhere(1)),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _elsewhere(2)),
    **dict.fromkeys(("convolution", "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"),
                    _by_sample(shared=1)),
    "_scaled_dot_product_flash_attention_for_cpu": _by_sample(shared=3),
    "unsqueeze": _inserted, "cat": _joined, "expand": _expanded, "native_layer_norm": _norm, "embedding": _looked_up,
}  # fmt: skip


def counts_of_parts(samples: int) -> list[int]:
    """Into how many parts to cut: twice as many each time, one sample each at last."""
    return [*(1 << power for power in range(1, samples.bit_length()) if 1 << power < samples), samples]


def part_of(array: Array, taken: Taken | None) -> Array:
    """The samples of an array that a part of a step is about."""
    if taken is None:
        return array
    if array.ndim <= taken.dim or array.shape[taken.dim] != taken.whole:
        raise NotReplayableError(f"a tensor has the shape {list(array.shape)}, which the program does not expect")
    part: Array = array[(slice(None),) * taken.dim + (slice(taken.first, taken.last),)]
    return part


def whole_leaf(leaf: Leaf, taken: Taken | None) -> Leaf:
    """A leaf of a part as the trace holds it, with all samples."""
    if taken is None:
        return leaf
    shape = (*leaf.type.shape[: taken.dim], taken.whole, *leaf.type.shape[taken.dim + 1 :])
    return replace(leaf, type=leaf.type._replace(shape=shape))


def parts_of(step: Step, cut: Cut, batch: Batch, pieces: int) -> list[Part]:
    """The step for each of so many parts of the samples, as even as can be."""
    edges = [batch.samples * at // pieces for at in range(pieces + 1)]
    return [_part(step, cut, batch, first, last) for first, last in pairwise(edges)]


def _part(step: Step, cut: Cut, batch: Batch, first: int, last: int) -> Part:
    nodes = list(step.nodes)
    taken: dict[Ref, Taken] = {}
    for ref in {*cut.given, *(Ref(number) for number in cut.nodes)}:
        axis = batch.axes.get(ref)
        if axis is not None and (ref in cut.given or isinstance(step.nodes[ref.node], Leaf)):
            taken[ref] = Taken(axis.dim, first * axis.each, last * axis.each, batch.samples * axis.each)
    for number in {*cut.nodes, *(ref.node for ref in cut.given)}:
        node = nodes[number]
        if isinstance(node, Leaf):
            nodes[number] = replace(node, type=_narrowed(node.type, batch.axes.get(Ref(number)), last - first))
            continue
        axes = [batch.axes.get(Ref(number, at)) for at in range(len(node.results))]
        results = tuple(_narrowed(one, axis, last - first) for one, axis in zip(node.results, axes, strict=True))
        nodes[number] = replace(node, results=results, args=_resized(node, results))
    return Part(replace(step, nodes=tuple(nodes)), taken)


def _narrowed(type_: Any, axis: Axis | None, samples: int) -> Any:
    """A type with fewer samples; it lies as it did, without the gaps."""
    if type_ is None or axis is None:
        return type_
    shape = (*type_.shape[: axis.dim], samples * axis.each, *type_.shape[axis.dim + 1 :])
    return Type(type_.dtype, shape, _dense(type_.strides, shape), type_.device)


def _dense(strides: tuple[int, ...] | None, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    if strides is None:
        return None
    found, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda one: strides[one]):
        if strides[dim] or shape[dim] == 1:
            found[dim] = step
            step *= shape[dim]
    return tuple(found)


def _resized(call: Call, results: Sequence[Type | None]) -> tuple[Json, ...]:
    """The arguments with the shape that a view or an expansion asks for."""
    base = call.op.split(".")[1]
    if base in ("view", "_unsafe_view", "reshape", "_reshape_alias", "expand") and results[0] is not None:
        return (call.args[0], results[0].shape, *call.args[2:])
    return call.args
