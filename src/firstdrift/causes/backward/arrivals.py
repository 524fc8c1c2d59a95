"""The ways in which a gradient arrives at a tensor: what read it, and the backward of each reader."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product

import numpy as np
from numpy.typing import NDArray

from ...sites import Site
from ...traces import Array
from ..agreement import Floats, distance, floats, limit
from ..evidence import Evidence
from ..screening import positions, sampled
from .backward_activations import known_activations
from .backward_formulas import Backward, Formula, Known, known_linears
from .backward_norms import known_norms
from .backward_windows import known_windows

MOST_TRIED = 1 << 14  # ways to read all consumers at once
HEAD = 1 << 16  # elements of the first samples, which are looked at first
LOOKED_AT = 1 << 10  # elements that tell whether one of them is right
NUMBERED = re.compile(r" \(\d+\)$")  # of a name that occurs more than once


@dataclass(frozen=True, slots=True)
class Arrival:
    """One reader of a tensor: what its backward started from on both sides, and what that backward may be.

    `settled` is the formula that it is, where the sum of all arrivals, or the operation itself, leaves no doubt.
    """

    name: str
    ours: Backward
    theirs: Backward
    options: tuple[Known, ...]
    settled: Known | None = None

    @property
    def sent(self) -> Floats | None:
        """What the reference's operation sends back of the candidate's tensors."""
        return None if self.settled is None else self.settled.formula(self.theirs)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """All readers; `complete` says that what they send back is, in sum, what was expected."""

    all: tuple[Arrival, ...]
    complete: bool


def arrivals(evidence: Evidence) -> Arrivals | None:
    """Everything that sends a gradient to a tensor; None where that is not known."""
    if evidence.site.phase != "agrad" or not np.isfinite(evidence.found).all():
        return None
    names = [key for key in evidence.inputs if key.startswith("agrad ") and key in evidence.candidate_inputs]
    found = [one for key in names if (one := _arrival(evidence, key, len(names) == 1)) is not None]
    if not found or len(found) != len(names):
        return None
    chosen = _adding_up(evidence, found)
    if chosen is not None:
        return Arrivals(tuple(_settled(one, way) for one, way in zip(found, chosen, strict=True)), True)
    return Arrivals(tuple(_settled(one, _only(one.options)) for one in found), False)


def _settled(one: Arrival, way: Known | None) -> Arrival:
    return Arrival(one.name, one.ours, one.theirs, one.options, way)


def _only(options: Sequence[Known]) -> Known | None:
    """The first way that is certain; where none is, nothing is taken for granted."""
    return next((one for one in options if one.certain), None)


def _arrival(evidence: Evidence, key: str, alone: bool) -> Arrival | None:
    name = NUMBERED.sub("", key[6:])
    forward = evidence.site._replace(phase="fwd", name=name, port="out")
    op = evidence.op if alone else evidence.around.op(forward) or evidence.around.op(forward._replace(sample=None))
    theirs = _backward(evidence, key, name, alone, True)
    ours = theirs if evidence.replayed else _backward(evidence, key, name, alone, False)
    if ours is None or theirs is None:
        return None
    return Arrival(name, ours, theirs, tuple(_options(op, ours, alone)))


def _options(op: str, backward: Backward, alone: bool) -> Iterator[Known]:
    """What an operation's backward may be, likeliest first."""
    yield from known_windows(op, backward)
    yield from known_activations(op, backward)
    yield from known_norms(op, backward)
    yield from known_linears(backward)
    yield from _handed_on(backward, alone)


def _handed_on(backward: Backward, alone: bool) -> Iterator[Known]:
    """A sum among several readers, or a module around one: the gradient of what it made is what it sends back."""
    if not alone and backward.gradient.shape == backward.value.shape:
        yield Known("the sum", lambda b: b.gradient, {})


def _backward(evidence: Evidence, key: str, name: str, alone: bool, candidate: bool) -> Backward | None:
    inputs = evidence.candidate_inputs if candidate else evidence.inputs
    value = _read_by(evidence, name, candidate)
    if value is None or value.shape != evidence.expected.shape:
        value = inputs.get("fwd")
    if value is None or value.shape != evidence.expected.shape or value.dtype.kind != "f":
        return None
    if alone:
        own = evidence.candidate_parameters if candidate else evidence.parameters
        return Backward(floats(inputs[key]), floats(value), own or evidence.parameters, evidence.attrs)
    return Backward(floats(inputs[key]), floats(value), _parameters(evidence, name, candidate), {})


def _read_by(evidence: Evidence, name: str, candidate: bool) -> Array | None:
    """The input of a module, which may be made of the tensor and others."""
    look = evidence.around.candidate if candidate else evidence.around.reference
    return look(evidence.site._replace(phase="fwd", name=name, port="in.0"))


def _parameters(evidence: Evidence, name: str, candidate: bool) -> dict[str, Array]:
    look = evidence.around.candidate if candidate else evidence.around.reference
    found = {site.port: look(site) for site in _weights(evidence, name)}
    return {port: item for port, item in found.items() if item is not None}


def _weights(evidence: Evidence, name: str) -> Iterator[Site]:
    for site in evidence.around.sites("weight"):
        if (site.step, site.name) == (evidence.site.step, name):
            yield site


@dataclass(frozen=True, slots=True)
class Few:
    """Some elements of a tensor, all of its first samples, on which to look before all of it is computed."""

    at: NDArray[np.intp]
    samples: int

    @classmethod
    def of(cls, array: Array, wanted: int) -> Few:
        """So many elements, or fewer, from as many samples as hold not too many."""
        each = max(array[:1].size, 1) if array.ndim else 1
        count = min(max(HEAD // each, 1), len(array)) if array.ndim else 1
        return cls(positions(count * each, wanted), count)

    def made(self, way: Known, formula: Formula, backward: Backward) -> Floats:
        """What a way, or a mistake of it, makes there; no more than is needed is computed where that can be."""
        if way.elementwise:
            return floats(formula(backward.at(self.at)))
        return sampled(formula(backward.first(self.samples) if way.samples else backward), self.at)


def _adding_up(evidence: Evidence, found: Sequence[Arrival]) -> tuple[Known, ...] | None:
    """One way for each reader, which in sum make what was expected."""
    if any(not one.options for one in found):
        return None
    few = Few.of(evidence.expected, LOOKED_AT)
    wanted = sampled(evidence.expected, few.at)
    made = [[few.made(way, way.formula, one.ours) for way in one.options] for one in found]
    for chosen in islice(product(*(range(len(one.options)) for one in found)), MOST_TRIED):
        total = sum((made[number][way] for number, way in enumerate(chosen)), np.zeros(len(wanted)))
        if distance(total, wanted) <= limit(evidence):
            ways = tuple(one.options[way] for one, way in zip(found, chosen, strict=True))
            whole = sum((way.formula(one.ours) for one, way in zip(found, ways, strict=True)), np.zeros(()))
            if distance(np.asarray(whole), evidence.expected) <= limit(evidence):
                return ways
    return None
