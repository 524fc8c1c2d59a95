"""A correspondence as counterparts of sites: which tensors of the candidate stand for one, and in which arrangement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from ...core.records import Record
from ...core.sites import PARAMETER_PHASES, Site
from ...core.traces import Array
from ..arrangements import Shape, Steps, agrees, put_together, taken_out, turns
from ..moments import EXACT, PROVEN_BITS
from ..pairs import Transform
from .correspondence import Correspondence
from .outline import Outline, Parameter, Run, Weight, dims_of

TURNED = Transform("transpose")


class Target(NamedTuple):
    """What stands for a site: tensors of the candidate in its step and sample, joined and rearranged."""

    places: tuple[tuple[str, str, int], ...]  # name, port, call
    how: str
    bits: float
    concatenate: int | None = None
    steps: Steps = ()


class _Layout(NamedTuple):
    """How parts lie in a whole: how often they take turns along an axis of it as it lies, or turned."""

    groups: int
    axis: int
    turned: bool = False
    stacked: bool = False  # parts have one axis less, and stand one behind the other

    def sizes(self, parts: Sequence[Shape]) -> list[int]:
        """How long parts of these shapes are along the axis."""
        return [1 if self.stacked else shape[self.axis] for shape in parts]

    def joining(self, whole: Shape, count: int) -> Steps:
        """The steps that make the whole of its parts, once these are joined."""
        shape, last = self._turned(whole)
        if self.stacked:
            return Transform("reshape", shape=shape), *last
        return *put_together(shape, count, self.groups, self.axis), *last

    def taking(self, whole: Shape, sizes: Sequence[int], place: int, part: Shape) -> Steps:
        """The steps that take one part out of the whole."""
        shape, first = self._turned(whole)
        steps = (*first, *taken_out(shape, sizes, place, self.groups, self.axis))
        return (*steps, Transform("reshape", shape=part)) if self.stacked else steps

    def _turned(self, whole: Shape) -> tuple[Shape, Steps]:
        return ((*whole[:-2], whole[-1], whole[-2]), (TURNED,)) if self.turned else (whole, ())


class _Fusion(NamedTuple):
    """A weight that is several of the other side."""

    whole: Weight
    parts: tuple[Weight, ...]
    is_reference: bool  # whether the whole is the reference's
    layout: _Layout

    def counterparts(self, whole: Weight, parts: Sequence[Weight], layout: _Layout) -> dict[Parameter, Target]:
        """The targets of the reference's weights among a whole and its parts."""
        shape, shapes = whole.record.shape or (), [part.record.shape or () for part in parts]
        if self.is_reference:
            places = tuple((*part.key, 0) for part in parts)
            axis = 0 if layout.stacked else layout.axis
            return {whole.key: Target(places, "parts", PROVEN_BITS, axis, layout.joining(shape, len(parts)))}
        sizes = layout.sizes(shapes)
        return {
            part.key: Target(
                ((*whole.key, 0),), "parts", PROVEN_BITS, steps=layout.taking(shape, sizes, place, shapes[place])
            )
            for place, part in enumerate(parts)
        }


class Translation:
    """Counterparts of the reference's sites, by what was found of two outlines."""

    def __init__(self, found: Correspondence) -> None:
        self.found = found
        self.reference, self.candidate = found.reference, found.candidate

    def target(self, site: Site) -> Target | None:
        """What stands for a site of the reference."""
        match site.phase:
            case "fwd" | "agrad":
                return self._output(site)
            case "input":
                return self._inputs.get(site.port)
            case "optim":
                parameter, dot, state = site.port.partition(".")
                target = self._parameter((site.name, parameter))
                if target is None:
                    return None
                places = tuple((name, f"{port}{dot}{state}", call) for name, port, call in target.places)
                return target._replace(places=places)
        return self._parameter((site.name, site.port)) if site.phase in PARAMETER_PHASES else None

    def _parameter(self, key: Parameter) -> Target | None:
        if key in self._fused_weights:
            return self._fused_weights[key]
        told = self.found.by_parameter.get(key)
        if told is None:
            return None
        (name, port), found = told
        return Target(((name, port, 0),), found.how, found.bits)

    def _output(self, site: Site) -> Target | None:
        told = self.found.run_of((site.name, site.call))
        if told is None:
            return self._fused_run(site)
        (name, call), found = told
        run, other = self.reference.by_key[site.name, site.call], self.candidate.by_key[name, call]
        port = port_of(run, other, site.port)
        if port is None:
            return None
        return Target(((name, port, call),), found.how, found.bits)

    @cached_property
    def _inputs(self) -> dict[str, Target]:
        """What the model is fed, where the two call it differently: the only one of its size."""
        sides = [
            [record for record in side.trace.records if record.site.phase == "input"]
            for side in (self.reference, self.candidate)
        ]
        named = {site.site.port for site in sides[0]} & {site.site.port for site in sides[1]}
        left, right = ([site for site in side if site.site.port not in named] for side in sides)
        found = {}
        for site in left:
            like = [other for other in right if dims_of(other) == dims_of(site)]
            rivals = [other for other in left if dims_of(other) == dims_of(site)]
            ports = {other.site.port for other in like}
            if len(ports) == 1 and len({other.site.port for other in rivals}) == 1:
                other = like[0].site
                found[site.site.port] = Target(((other.name, other.port, 0),), "structure", 3.0)
        return found

    # What is joined

    @cached_property
    def _fusions(self) -> list[_Fusion]:
        same, sides = self.found.same, (self.reference, self.candidate)
        found = [_fusion(*sides, whole, parts, True) for whole, parts in same.whole.items()]
        found += [_fusion(*sides[::-1], whole, parts, False) for whole, parts in same.part.items()]
        return [fusion for fusion in found if fusion is not None]

    @cached_property
    def _fused_weights(self) -> dict[Parameter, Target]:
        found: dict[Parameter, Target] = {}
        for fusion in self._fusions:
            found |= fusion.counterparts(fusion.whole, fusion.parts, fusion.layout)
        for fusion in self._fusions:
            for vector, parts in self._beside(fusion):
                layout = _Layout(fusion.layout.groups, 0)
                found = fusion.counterparts(vector, parts, layout) | found
        return found

    def _beside(self, fusion: _Fusion) -> Iterator[tuple[Weight, list[Weight]]]:
        """Biases of fused layers, which lie as the matrices do: their own numbers may be zeros, and say nothing."""
        sides = (self.reference, self.candidate) if fusion.is_reference else (self.candidate, self.reference)
        told = self.found.weights
        taken = told.keys() if fusion.is_reference else {found.to for found in told.values()}
        for n in sides[0].owned.get(fusion.whole.name, ()):
            vector = sides[0].weights[n]
            own = [part for one in fusion.parts if (part := _of_role(sides[1], one.name, vector.role)) is not None]
            if n in taken or vector is fusion.whole or len({part.name for part in own}) < len(fusion.parts):
                continue
            shapes = [part.record.shape or () for part in own]
            length = (vector.record.shape or (0,))[0]
            if all(len(shape) == 1 for shape in shapes) and sum(shape[0] for shape in shapes) == length:
                yield vector, own

    def _fused_run(self, site: Site) -> Target | None:
        """The output of a layer whose weight is joined of several, or is one of them."""
        run, fusion = self.reference.by_key.get((site.name, site.call)), self._fused_owner.get(site.name)
        if run is None or fusion is None or fusion.layout.stacked:
            return None
        owners = [part.name for part in fusion.parts] if fusion.is_reference else [fusion.whole.name]
        others = [other for name in owners if (other := self.candidate.by_key.get((name, site.call))) is not None]
        if len(others) < len(owners):
            return None
        if site.port.startswith("in."):
            port = port_of(run, others[0], site.port)
            return None if port is None else Target(((others[0].name, port, site.call),), "parts", PROVEN_BITS)
        shape = (run.outputs[site.port].shape if site.port in run.outputs else None) or ()
        shapes = [output.shape for other in others if (output := other.output) is not None and output.shape]
        if not shape or len(shapes) != len(others):
            return None
        places = tuple((other.name, min(other.outputs), other.call) for other in others)
        layout = _Layout(fusion.layout.groups, len(shape if fusion.is_reference else shapes[0]) - 1)
        if fusion.is_reference:
            if sum(other[-1] for other in shapes) != shape[-1]:
                return None
            return Target(places, "parts", PROVEN_BITS, layout.axis, layout.joining(shape, len(others)))
        sizes = fusion.layout.sizes([part.record.shape or () for part in fusion.parts])
        place = [part.name for part in fusion.parts].index(site.name)
        if sum(sizes) != shapes[0][-1] or sizes[place] != shape[-1]:
            return None
        return Target(places, "parts", PROVEN_BITS, steps=layout.taking(shapes[0], sizes, place, shape))

    @cached_property
    def _fused_owner(self) -> dict[str, _Fusion]:
        """The reference's layers with a matrix that is joined of several, or is a part."""
        return {
            weight.name: fusion
            for fusion in self._fusions
            for weight in ((fusion.whole,) if fusion.is_reference else fusion.parts)
            if len(weight.record.shape or ()) > 1
        }


def _fusion(
    wholes: Outline, others: Outline, whole: int, parts: Sequence[int], is_reference: bool
) -> _Fusion | None:  # fmt: skip
    """How the parts lie in the whole, number by number; None where they do not."""
    weight, own = wholes.weights[whole], tuple(others.weights[n] for n in parts)
    array, arrays = wholes.trace.array(weight.record), [others.trace.array(part.record) for part in own]
    for turned in (False, True) if array.ndim > 1 else (False,):
        view = array.swapaxes(-1, -2) if turned else array
        for axis in range(view.ndim):
            stacked = all(part.ndim == view.ndim - 1 for part in arrays)
            lengths = [1] * len(arrays) if stacked else [part.shape[axis] if part.ndim > axis else 0 for part in arrays]
            if view.shape[axis] != sum(lengths) or 0 in lengths:
                continue
            for groups in [1] if stacked else turns(lengths):
                if all(
                    _is_part(part, view, taken_out(view.shape, lengths, place, groups, axis))
                    for place, part in enumerate(arrays)
                ):
                    return _Fusion(weight, own, is_reference, _Layout(groups, axis, turned, stacked))
    return None


def _of_role(side: Outline, name: str, role: str) -> Weight | None:
    found = [side.weights[n] for n in side.owned.get(name, ()) if side.weights[n].role == role]
    return found[0] if len(found) == 1 else None


def _is_part(part: Array, whole: Array, steps: Steps) -> bool:
    near = EXACT if part.dtype == whole.dtype else 1e-2
    return agrees(part, whole, steps, near) or not np.any(part)


def port_of(run: Run, other: Run, port: str) -> str | None:
    """What the other side calls a port: the same, the only one, the first of several, or the only one of its size."""
    entering = port.startswith("in.")
    reference, candidate = (run.inputs, other.inputs) if entering else (run.outputs, other.outputs)
    if port not in reference:
        return port if port in candidate else None
    if port in candidate and _fits(reference[port], candidate[port]):
        return port
    usual = {"out": "out.0", "out.0": "out"}.get(port)
    if usual in candidate and usual not in reference and _fits(reference[port], candidate[usual]):
        return usual
    if len(reference) == len(candidate) == 1:
        return next(iter(candidate))
    dims = dims_of(reference[port])
    like = [name for name, record in candidate.items() if dims_of(record) == dims and name not in reference]
    rivals = [name for name, record in reference.items() if dims_of(record) == dims and name not in candidate]
    return like[0] if len(like) == len(rivals) == 1 else None


def _fits(reference: Record, candidate: Record) -> bool:
    if reference.shape is None or candidate.shape is None:
        return True
    return prod(dims_of(reference)) == prod(dims_of(candidate)) or len(reference.shape) == len(candidate.shape)
