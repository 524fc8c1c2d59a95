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
    def _fusions(self) -> list[tuple[_Fused, bool]]:
        """How the parts lie in each weight that is several of the other side; and whether the
        reference has the whole."""
        found = []
        for sides, joined, is_reference in (
            ((self.reference, self.candidate), self.found.same.whole, True),
            ((self.candidate, self.reference), self.found.same.part, False),
        ):
            for whole, parts in joined.items():
                one = _fused(sides[0], whole, sides[1], parts)
                if one is not None:
                    found.append((one, is_reference))
        return found

    @cached_property
    def _fused_weights(self) -> dict[Parameter, Target]:
        found: dict[Parameter, Target] = {}
        for one, is_reference in self._fusions:
            sides = (self.reference, self.candidate) if is_reference else (self.candidate, self.reference)
            whole, parts = sides[0].weights[one.whole], [sides[1].weights[n] for n in one.parts]
            shape, sizes = whole.record.shape or (), _sizes(one, [p.record.shape or () for p in parts])
            if is_reference:
                places = tuple((part.name, part.port, 0) for part in parts)
                steps, axis = _joining(one, shape, len(parts))
                found[whole.key] = Target(places, "parts", PROVEN_BITS, axis, steps)
                continue
            for place, part in enumerate(parts):
                steps = _taking(one, shape, sizes, place, part.record.shape or ())
                found[part.key] = Target(((whole.name, whole.port, 0),), "parts", PROVEN_BITS, None, steps)
        for one, is_reference in self._fusions:
            for key, target in self._beside(one, is_reference):
                found.setdefault(key, target)
        return found

    def _beside(self, fused: _Fused, is_reference: bool) -> Iterator[tuple[Parameter, Target]]:
        """Biases of fused layers, which lie as the matrices do: their own numbers may be zeros, and say nothing."""
        sides = (self.reference, self.candidate) if is_reference else (self.candidate, self.reference)
        whole, parts = sides[0].weights[fused.whole], [sides[1].weights[n] for n in fused.parts]
        taken = {*self.found.weights}, {told.to for told in self.found.weights.values()}
        taken = taken if is_reference else (taken[1], taken[0])
        for n in sides[0].owned.get(whole.name, ()):
            vector = sides[0].weights[n]
            several = [_of_role(sides[1], part.name, vector.role) for part in parts]
            if n in taken[0] or n == fused.whole or None in several or len({part.name for part in parts}) < len(parts):
                continue
            own = [sides[1].weights[m] for m in several if m is not None]
            shapes = [weight.record.shape or () for weight in own]
            length = (vector.record.shape or (0,))[0]
            if any(len(shape) != 1 for shape in shapes) or sum(shape[0] for shape in shapes) != length:
                continue
            if is_reference:
                places = tuple((weight.name, weight.port, 0) for weight in own)
                steps = put_together((length,), len(own), fused.groups, 0)
                yield vector.key, Target(places, "parts", PROVEN_BITS, 0, steps)
                continue
            for place, weight in enumerate(own):
                steps = taken_out((length,), [shape[0] for shape in shapes], place, fused.groups, 0)
                yield weight.key, Target(((vector.name, vector.port, 0),), "parts", PROVEN_BITS, None, steps)

    def _fused_run(self, site: Site) -> Target | None:
        """The output of a layer whose weight is joined of several, or is one of them."""
        run = self.reference.by_key.get((site.name, site.call))
        one = self._fused_owner.get(site.name)
        if run is None or one is None or one[0].stacked:
            return None
        fused, is_reference, place = one
        sides = (self.reference, self.candidate) if is_reference else (self.candidate, self.reference)
        whole, parts = sides[0].weights[fused.whole].name, [sides[1].weights[n].name for n in fused.parts]
        runs = [self.candidate.by_key.get((name, site.call)) for name in (parts if is_reference else [whole])]
        if any(other is None for other in runs):
            return None
        others = [other for other in runs if other is not None]
        if site.port.startswith("in."):
            port = port_of(run, others[0], site.port)
            return None if port is None else Target(((others[0].name, port, site.call),), "parts", PROVEN_BITS)
        records = [other.output for other in others]
        reference = run.outputs.get(site.port)
        shapes = [record.shape for record in records if record is not None and record.shape]
        if reference is None or not reference.shape or len(shapes) != len(others):
            return None
        places = tuple((other.name, _first(other), other.call) for other in others)
        last = len(reference.shape) - 1
        if is_reference:
            if sum(shape[-1] for shape in shapes) != reference.shape[-1]:
                return None
            return Target(
                places, "parts", PROVEN_BITS, last, put_together(reference.shape, len(parts), fused.groups, last)
            )
        sizes = _sizes(fused, [self.reference.weights[n].record.shape or () for n in fused.parts])
        if sum(sizes) != shapes[0][-1] or sizes[place] != reference.shape[-1]:
            return None
        steps = taken_out(shapes[0], sizes, place, fused.groups, len(shapes[0]) - 1)
        return Target(places, "parts", PROVEN_BITS, None, steps)

    @cached_property
    def _fused_owner(self) -> dict[str, tuple[_Fused, bool, int]]:
        """Our layers with a matrix that is joined of several, or a part: how, which side the whole is on, and where."""
        found: dict[str, tuple[_Fused, bool, int]] = {}
        for one, is_reference in self._fusions:
            places = (one.whole,) if is_reference else one.parts
            for place, n in enumerate(places):
                weight = self.reference.weights[n]
                if len(weight.record.shape or ()) > 1:
                    found[weight.name] = one, is_reference, place
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


def _sizes(fused: _Fused, shapes: Sequence[tuple[int, ...]]) -> list[int]:
    return [1 if fused.stacked else shape[fused.axis] for shape in shapes]


def _joining(fused: _Fused, whole: tuple[int, ...], count: int) -> tuple[Steps, int]:
    """Steps that make the whole of its parts, and the axis along which they are joined first."""
    shape = (*whole[:-2], whole[-1], whole[-2]) if fused.turned else whole
    last: Steps = (TURNED,) if fused.turned else ()
    if fused.stacked:
        return (Transform("reshape", shape=shape), *last), 0
    return (*put_together(shape, count, fused.groups, fused.axis), *last), fused.axis


def _taking(
    fused: _Fused, whole: tuple[int, ...], sizes: Sequence[int], place: int, part: tuple[int, ...]
) -> Steps:  # fmt: skip
    shape = (*whole[:-2], whole[-1], whole[-2]) if fused.turned else whole
    first: Steps = (TURNED,) if fused.turned else ()
    steps = (*first, *taken_out(shape, sizes, place, fused.groups, fused.axis))
    return (*steps, Transform("reshape", shape=part)) if fused.stacked else steps


def _first(run: Run) -> str:
    return min(run.outputs)


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
    like = [
        name
        for name, record in candidate.items()
        if dims_of(record) == dims_of(reference[port]) and name not in reference
    ]
    rivals = [
        name
        for name, record in reference.items()
        if dims_of(record) == dims_of(reference[port]) and name not in candidate
    ]
    return like[0] if len(like) == len(rivals) == 1 else None


def _fits(reference: Record, candidate: Record) -> bool:
    if reference.shape is None or candidate.shape is None:
        return True
    return prod(dims_of(reference)) == prod(dims_of(candidate)) or len(reference.shape) == len(candidate.shape)
