"""A step of some of its samples: types and arguments with their sizes, and the part of every tensor that is theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from ...core.strict_json import Json
from ...core.traces import Array
from ..calls import Call, Leaf, NotReplayableError, Ref, Step, Type
from ..cuts import Cut
from .batching import Axis, Batch


class Taken(NamedTuple):
    """A range of a dimension of so many."""

    dim: int
    first: int
    last: int
    whole: int


@dataclass(frozen=True, slots=True)
class Part:
    """Some samples of a step: the step with their sizes, and from where to where what it is given is taken."""

    step: Step
    taken: Mapping[Ref, Taken]


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
