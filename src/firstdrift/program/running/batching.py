"""A cut run a few samples at a time: which axis of each value is the batch follows from the calls, or it is refused.

What a cut is given, but weights and state, is taken to have its samples along the first axis. Every call is then asked
where they lie in what it gives: it must treat them one by one, so that a part of the samples gives that part of the
result. A call that mixes samples (a sum over them, a norm in training), or of which this is not known, ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch

from ...core.strict_json import Json
from ..calls import Call, Leaf, NotReplayableError, Ref, Step, reads
from ..cuts import Cut
from .calling import operation

_SHARED = ("weight", "weight_after", "optim", "grad", "grad_scaled")  # phases whose tensors belong to all samples


class Axis(NamedTuple):
    """The dimension along which samples lie, and how many of its elements in a row belong to each."""

    dim: int
    each: int = 1


Axes = Mapping[Ref, Axis | None]


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


def batch_of(step: Step, cut: Cut) -> Batch:
    """Find the samples of a cut; raises NotReplayableError where a call mixes them."""
    given = {ref: site.phase not in _SHARED for ref, site in cut.given.items()}
    types = {ref: step.type_of(ref) for ref in given}
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
    shapes = [() if one is None else one.shape for one in (step.type_of(ref) for ref in reads(call))]
    out = [() if result is None else result.shape for result in call.results]
    rule = _RULES.get(facts.base, _aligned if torch.Tag.pointwise in func.tags else None)
    if rule is None:
        raise _MixedError
    return [rule(_Seen(call, own, shapes, out, samples))] * len(out)


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


Rule = Callable[[_Seen], Axis]  # where samples lie in all that a call gives


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


def _along(at: int, default: Json = None) -> Rule:
    """Along dimensions that are not that of the samples, which may be lost; `at` is where the call names them."""

    def rule(seen: _Seen) -> Axis:
        axis, count = _alike(seen), len(seen.shapes[0])
        said = seen.argument(at, "dim", default)
        dims = {dim % count for dim in ([said] if isinstance(said, int) else said or ())}
        if not dims or axis.dim in dims:
            raise _MixedError
        lost = len(seen.out[0]) < count
        return Axis(axis.dim - lost * sum(dim < axis.dim for dim in dims), axis.each)

    return rule


def _alike(seen: _Seen) -> Axis:
    """Everything has its samples at the same place."""
    axis, *others = dict.fromkeys(seen.axes)
    if others or axis is None:
        raise _MixedError
    return axis


def _viewed(seen: _Seen) -> Axis:
    """Another shape of the same numbers: samples begin where they began, and fill whole elements of one dimension."""
    axis, shape, out = seen.first(), seen.shapes[0], seen.out[0]
    before = prod(shape[: axis.dim])
    for dim, size in enumerate(out):
        if prod(out[:dim]) == before and size >= seen.samples and size % seen.samples == 0 and size > 1:
            return Axis(dim, size // seen.samples)
    raise _MixedError


def _turned(seen: _Seen) -> Axis:
    axis, count = seen.first(), len(seen.shapes[0])
    order = list(range(count))
    if seen.call.op.startswith("aten.permute"):
        order = [dim % count for dim in seen.call.args[1]]
    else:
        one, other = (0, count - 1) if len(seen.call.args) == 1 else (dim % count for dim in seen.call.args[1:3])
        order[one], order[other] = order[other], order[one]
    return Axis(order.index(axis.dim), axis.each)


def _inserted(seen: _Seen) -> Axis:
    axis, dim = seen.first(), seen.call.args[1] % len(seen.out[0])
    return Axis(axis.dim + (dim <= axis.dim), axis.each)


def _expanded(seen: _Seen) -> Axis:
    axis = seen.first()
    return Axis(axis.dim + len(seen.out[0]) - len(seen.shapes[0]), axis.each)


def _product(seen: _Seen) -> Axis:
    *others, left, right = seen.axes
    if left is not None and left.dim == 0 and not any((*others, right)):
        return left
    if right is not None and right.dim == 1 and not any((*others, left)):
        return right
    raise _MixedError


def _products(seen: _Seen) -> Axis:
    left, right = seen.axes[-2:]
    if left is None or left != right or left.dim:
        raise _MixedError
    return left


def _by_sample(shared: int) -> Rule:
    """Sample by sample along the first dimension, which the first so many tensors have."""

    def rule(seen: _Seen) -> Axis:
        first = seen.axes[0]
        if first is None or any(seen.axes[shared:]) or any(axis is None or axis.dim for axis in seen.axes[:shared]):
            raise _MixedError
        return first

    return rule


def _norm(seen: _Seen) -> Axis:
    axis = seen.first()
    if axis.dim >= len(seen.shapes[0]) - len(seen.call.args[1]):
        raise _MixedError
    return axis


def _looked_up(seen: _Seen) -> Axis:
    table, axis = seen.axes
    if table is not None or axis is None:
        raise _MixedError
    return axis


_SAME = ("alias", "detach", "clone", "_to_copy", "lift_fresh", "contiguous", "empty_like", "zeros_like", "ones_like",
         "full_like", "bernoulli_")  # fmt: skip
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_SAME, _Seen.first),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), _viewed),
    **dict.fromkeys(("transpose", "permute", "t"), _turned),
    **dict.fromkeys(("select", "slice", "unbind", "cat"), _along(1, 0)),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _along(2, 0)),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "_softmax", "_log_softmax"), _along(1)),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _along(2)),
    **dict.fromkeys(("mm", "addmm"), _product),
    **dict.fromkeys(("bmm", "baddbmm"), _products),
    **dict.fromkeys(("convolution", "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"), _by_sample(1)),
    "_scaled_dot_product_flash_attention_for_cpu": _by_sample(3), "unsqueeze": _inserted, "expand": _expanded,
    "native_layer_norm": _norm, "embedding": _looked_up,
}  # fmt: skip
