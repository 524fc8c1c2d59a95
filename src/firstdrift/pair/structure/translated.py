"""A correspondence as counterparts of sites: which tensors of the candidate stand for one, and in which arrangement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from ...core.records import Record
from ...core.sites import PARAMETER_PHASES, Site
from ...core.traces import Array
from ..arrangements import Steps, agrees, put_together, taken_out, turns
from ..moments import EXACT, PROVEN_BITS
from ..pairs import Transform
from .correspondence import Correspondence
from .outline import Outline, Parameter, Run, dims_of

TURNED = Transform("transpose")


class Target(NamedTuple):
    """What stands for a site: tensors of the candidate in its step and sample, joined and rearranged."""

    places: tuple[tuple[str, str, int], ...]  # name, port, call
    how: str
    bits: float
    concatenate: int | None = None
    steps: Steps = ()


@dataclass(frozen=True, slots=True)
class _Fused:
    """A weight that is several of the other side: how its parts lie in it."""

    whole: int
    parts: tuple[int, ...]
    groups: int
    axis: int  # of the whole, as it lies or turned
    turned: bool
    stacked: bool


class Translation:
    """Counterparts of the reference's sites, by what was found of two outlines."""

    def __init__(self, found: Correspondence) -> None:
        self.found = found
        self.ours, self.theirs = found.ours, found.theirs

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
        run, other = self.ours.by_key[site.name, site.call], self.theirs.by_key[name, call]
        port = port_of(run, other, site.port)
        if port is None:
            return None
        return Target(((name, port, call),), found.how, found.bits)

    @cached_property
    def _inputs(self) -> dict[str, Target]:
        """What the model is fed, where the two call it differently: the only one of its size."""
        sides = [[one for one in side.trace.records if one.site.phase == "input"] for side in (self.ours, self.theirs)]
        named = {one.site.port for one in sides[0]} & {one.site.port for one in sides[1]}
        left, right = ([one for one in side if one.site.port not in named] for side in sides)
        found = {}
        for one in left:
            like = [other for other in right if dims_of(other) == dims_of(one)]
            rivals = [other for other in left if dims_of(other) == dims_of(one)]
            ports = {other.site.port for other in like}
            if len(ports) == 1 and len({other.site.port for other in rivals}) == 1:
                other = like[0].site
                found[one.site.port] = Target(((other.name, other.port, 0),), "structure", 3.0)
        return found

    # What is joined

    @cached_property
    def _fusions(self) -> list[tuple[_Fused, bool]]:
        """How the parts lie in each weight that is several of the other side; and whether the whole is ours."""
        found = []
        for sides, joined, is_ours in (
            ((self.ours, self.theirs), self.found.same.whole, True),
            ((self.theirs, self.ours), self.found.same.part, False),
        ):
            for whole, parts in joined.items():
                one = _fused(sides[0], whole, sides[1], parts)
                if one is not None:
                    found.append((one, is_ours))
        return found

    @cached_property
    def _fused_weights(self) -> dict[Parameter, Target]:
        found: dict[Parameter, Target] = {}
        for one, is_ours in self._fusions:
            sides = (self.ours, self.theirs) if is_ours else (self.theirs, self.ours)
            whole, parts = sides[0].weights[one.whole], [sides[1].weights[n] for n in one.parts]
            shape, sizes = whole.record.shape or (), _sizes(one, [p.record.shape or () for p in parts])
            if is_ours:
                places = tuple((part.name, part.port, 0) for part in parts)
                steps, axis = _joining(one, shape, len(parts))
                found[whole.key] = Target(places, "parts", PROVEN_BITS, axis, steps)
                continue
            for place, part in enumerate(parts):
                steps = _taking(one, shape, sizes, place, part.record.shape or ())
                found[part.key] = Target(((whole.name, whole.port, 0),), "parts", PROVEN_BITS, None, steps)
        for one, is_ours in self._fusions:
            for key, target in self._beside(one, is_ours):
                found.setdefault(key, target)
        return found

    def _beside(self, one: _Fused, is_ours: bool) -> Iterator[tuple[Parameter, Target]]:
        """Biases of fused layers, which lie as the matrices do: their own numbers may be zeros, and say nothing."""
        sides = (self.ours, self.theirs) if is_ours else (self.theirs, self.ours)
        whole, parts = sides[0].weights[one.whole], [sides[1].weights[n] for n in one.parts]
        taken = {*self.found.weights}, {told.to for told in self.found.weights.values()}
        taken = taken if is_ours else (taken[1], taken[0])
        for n in sides[0].owned.get(whole.name, ()):
            vector = sides[0].weights[n]
            several = [_of_role(sides[1], part.name, vector.role) for part in parts]
            if n in taken[0] or n == one.whole or None in several or len({part.name for part in parts}) < len(parts):
                continue
            own = [sides[1].weights[m] for m in several if m is not None]
            shapes = [weight.record.shape or () for weight in own]
            length = (vector.record.shape or (0,))[0]
            if any(len(shape) != 1 for shape in shapes) or sum(shape[0] for shape in shapes) != length:
                continue
            if is_ours:
                places = tuple((weight.name, weight.port, 0) for weight in own)
                steps = put_together((length,), len(own), one.groups, 0)
                yield vector.key, Target(places, "parts", PROVEN_BITS, 0, steps)
                continue
            for place, weight in enumerate(own):
                steps = taken_out((length,), [shape[0] for shape in shapes], place, one.groups, 0)
                yield weight.key, Target(((vector.name, vector.port, 0),), "parts", PROVEN_BITS, None, steps)

    def _fused_run(self, site: Site) -> Target | None:
        """The output of a layer whose weight is joined of several, or is one of them."""
        run = self.ours.by_key.get((site.name, site.call))
        one = self._fused_owner.get(site.name)
        if run is None or one is None or one[0].stacked:
            return None
        fused, is_ours, place = one
        sides = (self.ours, self.theirs) if is_ours else (self.theirs, self.ours)
        whole, parts = sides[0].weights[fused.whole].name, [sides[1].weights[n].name for n in fused.parts]
        runs = [self.theirs.by_key.get((name, site.call)) for name in (parts if is_ours else [whole])]
        if any(other is None for other in runs):
            return None
        others = [other for other in runs if other is not None]
        if site.port.startswith("in."):
            port = port_of(run, others[0], site.port)
            return None if port is None else Target(((others[0].name, port, site.call),), "parts", PROVEN_BITS)
        records = [other.output for other in others]
        ours = run.outputs.get(site.port)
        shapes = [one.shape for one in records if one is not None and one.shape]
        if ours is None or not ours.shape or len(shapes) != len(others):
            return None
        places = tuple((other.name, _first(other), other.call) for other in others)
        last = len(ours.shape) - 1
        if is_ours:
            if sum(shape[-1] for shape in shapes) != ours.shape[-1]:
                return None
            return Target(places, "parts", PROVEN_BITS, last, put_together(ours.shape, len(parts), fused.groups, last))
        sizes = _sizes(fused, [self.ours.weights[n].record.shape or () for n in fused.parts])
        if sum(sizes) != shapes[0][-1] or sizes[place] != ours.shape[-1]:
            return None
        steps = taken_out(shapes[0], sizes, place, fused.groups, len(shapes[0]) - 1)
        return Target(places, "parts", PROVEN_BITS, None, steps)

    @cached_property
    def _fused_owner(self) -> dict[str, tuple[_Fused, bool, int]]:
        """Our layers with a matrix that is joined of several, or a part: how, which side the whole is on, and where."""
        found: dict[str, tuple[_Fused, bool, int]] = {}
        for one, is_ours in self._fusions:
            places = (one.whole,) if is_ours else one.parts
            for place, n in enumerate(places):
                weight = self.ours.weights[n]
                if len(weight.record.shape or ()) > 1:
                    found[weight.name] = one, is_ours, place
        return found


def _fused(wholes: Outline, whole: int, others: Outline, parts: Sequence[int]) -> _Fused | None:
    """How the parts lie in the whole, number by number."""
    array = wholes.trace.array(wholes.weights[whole].record)
    arrays = [others.trace.array(others.weights[n].record) for n in parts]
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
                    return _Fused(whole, tuple(parts), groups, axis, turned, stacked)
    return None


def _of_role(side: Outline, name: str, role: str) -> int | None:
    found = [n for n in side.owned.get(name, ()) if side.weights[n].role == role]
    return found[0] if len(found) == 1 else None


def _is_part(part: Array, whole: Array, steps: Steps) -> bool:
    near = EXACT if part.dtype == whole.dtype else 1e-2
    return agrees(part, whole, steps, near) or not np.any(part)


def _sizes(one: _Fused, shapes: Sequence[tuple[int, ...]]) -> list[int]:
    return [1 if one.stacked else shape[one.axis] for shape in shapes]


def _joining(one: _Fused, whole: tuple[int, ...], count: int) -> tuple[Steps, int]:
    """Steps that make the whole of its parts, and the axis along which they are joined first."""
    shape = (*whole[:-2], whole[-1], whole[-2]) if one.turned else whole
    last: Steps = (TURNED,) if one.turned else ()
    if one.stacked:
        return (Transform("reshape", shape=shape), *last), 0
    return (*put_together(shape, count, one.groups, one.axis), *last), one.axis


def _taking(
    one: _Fused, whole: tuple[int, ...], sizes: Sequence[int], place: int, part: tuple[int, ...]
) -> Steps:  # fmt: skip
    shape = (*whole[:-2], whole[-1], whole[-2]) if one.turned else whole
    first: Steps = (TURNED,) if one.turned else ()
    steps = (*first, *taken_out(shape, sizes, place, one.groups, one.axis))
    return (*steps, Transform("reshape", shape=part)) if one.stacked else steps


def _first(run: Run) -> str:
    return min(run.outputs)


def port_of(run: Run, other: Run, port: str) -> str | None:
    """What the other side calls a port: the same, the only one, the first of several, or the only one of its size."""
    entering = port.startswith("in.")
    ours, theirs = (run.inputs, other.inputs) if entering else (run.outputs, other.outputs)
    if port not in ours:
        return port if port in theirs else None
    if port in theirs and _fits(ours[port], theirs[port]):
        return port
    usual = {"out": "out.0", "out.0": "out"}.get(port)
    if usual in theirs and usual not in ours and _fits(ours[port], theirs[usual]):
        return usual
    if len(ours) == len(theirs) == 1:
        return next(iter(theirs))
    like = [name for name, record in theirs.items() if dims_of(record) == dims_of(ours[port]) and name not in ours]
    rivals = [name for name, record in ours.items() if dims_of(record) == dims_of(ours[port]) and name not in theirs]
    return like[0] if len(like) == len(rivals) == 1 else None


def _fits(ours: Record, theirs: Record) -> bool:
    if ours.shape is None or theirs.shape is None:
        return True
    return prod(dims_of(ours)) == prod(dims_of(theirs)) or len(ours.shape) == len(theirs.shape)
