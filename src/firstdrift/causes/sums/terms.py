"""The tensors that glue may have used: what came before, and the parameters of the module that puts them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...judge.apriori.kinds import kind_of
from ...traces import Array
from ..agreement import Floats, floats, limit
from ..evidence import Evidence
from ..layout.placements import chunks, moved, spread, spreads
from ..screening import positions, sampled

MOST_TERMS = 8
CLEARLY = 2.0  # times as alike: by how much another arrangement of axes must be the better one
CHANCE = 5.0  # deviations of a likeness that is there by chance
SAMPLE = 4096
SAME = 1e-13  # relative: two records of one tensor


@dataclass(frozen=True, slots=True)
class Term:
    """One tensor, as the reference and as the candidate had it, shaped so that it broadcasts."""

    name: str
    reference: Array
    candidate: Array
    is_parameter: bool = False
    whole: str = ""  # the tensor of which it is a part


@dataclass(frozen=True, slots=True)
class Glue:
    """The terms of a drift, and the same at some places."""

    evidence: Evidence
    terms: tuple[Term, ...]
    at: NDArray[np.intp]
    expected: Floats
    found: Floats
    reference: tuple[Floats, ...]
    candidate: tuple[Floats, ...]

    def near(self, a: Floats, b: Floats, slack: float = 2.0) -> bool:
        """Whether noise explains the difference of two tensors at these places."""
        size = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
        return bool(float(np.linalg.norm(a - b)) <= slack * limit(self.evidence) * size)

    def whole(self, index: int) -> Floats:
        """A term of the candidate, everywhere."""
        return floats(np.broadcast_to(self.terms[index].candidate, self.evidence.expected.shape))

    def is_full(self, index: int) -> bool:
        """Whether a term has a number for every element, and is not spread over an axis."""
        return self.terms[index].reference.size == self.evidence.expected.size


def glue(evidence: Evidence) -> Glue | None:
    """What a drift may have been put together from; None where nothing of the right shape is known."""
    if evidence.site.phase != "fwd" or evidence.expected.size < 4 or kind_of(evidence.op) == "norm":
        return None  # of one sample a norm is a sum of its input and its weight, with numbers that mean nothing
    shape = evidence.expected.shape
    at = positions(evidence.expected.size, SAMPLE)
    where = np.unravel_index(at, shape)

    def some(array: Array) -> Floats:
        return np.asarray(np.broadcast_to(array, shape)[where], np.float64)

    terms: list[Term] = []
    ours: list[Floats] = []
    theirs: list[Floats] = []
    for term in _terms(evidence):
        a, b = some(term.reference), some(term.candidate)
        if len(terms) < MOST_TERMS and not any(_same(a, one) and _same(b, two) for one, two in zip(ours, theirs)):  # noqa: B905
            terms.append(term)
            ours.append(a)
            theirs.append(b)
    made = Glue(evidence, tuple(terms), at, some(evidence.expected), some(evidence.found), tuple(ours), tuple(theirs))
    every = (made.expected, made.found, *ours, *theirs)
    return made if terms and all(np.isfinite(one).all() for one in every) else None


def _terms(evidence: Evidence) -> Iterator[Term]:
    """Tensors as they are, then parameters, then the parts of tensors that were cut up."""
    shape = evidence.expected.shape
    inputs = list(_both(evidence.inputs, evidence.candidate_inputs))
    for key, value, other in inputs:
        a, b = arranged(value, evidence.expected), arranged(other, evidence.expected)
        if a is not None and b is not None and a.shape == b.shape:
            yield Term(key, a, b)
    for key, value, other in _both(evidence.parameters, evidence.candidate_parameters):
        for number, (a, b) in enumerate(zip(spreads(value, shape), spreads(other, shape), strict=True)):
            axis = next((axis for axis, size in enumerate(a.shape) if size > 1), 0)
            yield Term(f"{key} along axis {axis}" if number else key, a, b, True)
    for key, value, other in inputs:
        if spread(value, shape) is None:
            for (words, a), (_, b) in zip(chunks(value, shape), chunks(other, shape), strict=True):
                yield Term(f"{words}{key}", a, b, whole=key)


def arranged(value: Array, expected: Array) -> Array | None:
    """A tensor shaped to broadcast to another; where its channels may lie elsewhere, as it is clearly more alike."""
    usual = spread(value, expected.shape)
    others = list(moved(value, expected.shape))
    if not others or usual is None:
        return others[0] if others else usual
    at = positions(expected.size, SAMPLE)
    wanted = sampled(expected, at)
    likeness = [_likeness(sampled(np.broadcast_to(one, expected.shape), at), wanted) for one in (usual, *others)]
    best = int(np.argmax(likeness))
    clear = likeness[best] > max(CLEARLY * likeness[0], CHANCE / len(at) ** 0.5)
    return others[best - 1] if best and clear else usual


def _likeness(a: Floats, b: Floats) -> float:
    size = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return abs(float(a @ b)) / size if size > 0 and np.isfinite(size) else 0.0


def _both(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> Iterator[tuple[str, Array, Array]]:
    for key, value in ours.items():
        other = theirs.get(key)
        if other is not None and other.shape == value.shape and value.size > 1 and value.dtype.kind in "fiu":
            yield key, value, other


def _same(a: Floats, b: Floats) -> bool:
    size = float(np.linalg.norm(a))
    return float(np.linalg.norm(a - b)) <= SAME * size if size > 0 else not b.any()
