"""The tensors that glue may have used: what came before, and the parameters of the module that puts them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..traces import Array
from ..verdict.noise import kind_of
from .agreement import Floats, floats, limit
from .evidence import Evidence
from .screening import positions

MOST_TERMS = 8
SAMPLE = 4096
SAME = 1e-13  # relative: two records of one tensor


@dataclass(frozen=True, slots=True)
class Term:
    """One tensor, as the reference and as the candidate had it, shaped so that it broadcasts."""

    name: str
    reference: Array
    candidate: Array
    is_parameter: bool = False


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


def spread(value: Array, shape: tuple[int, ...]) -> Array | None:
    """A tensor shaped to broadcast to a shape, by its last axes or else its first ones; None where it does not."""
    missing = len(shape) - value.ndim
    if missing < 0:
        return None
    for padded in (
        (1,) * missing + value.shape,
        value.shape + (1,) * missing,
        (1, *value.shape, *(1,) * (missing - 1)),
    ):
        if len(padded) == len(shape) and all(one in (1, size) for one, size in zip(padded, shape, strict=True)):
            return value.reshape(padded)
    return None


def _terms(evidence: Evidence) -> Iterator[Term]:
    yield from _of(evidence, evidence.inputs, evidence.candidate_inputs, False)
    yield from _of(evidence, evidence.parameters, evidence.candidate_parameters, True)


def _of(evidence: Evidence, ours: Mapping[str, Array], theirs: Mapping[str, Array], own: bool) -> Iterator[Term]:
    shape = evidence.expected.shape
    for key, value in ours.items():
        other = theirs.get(key)
        if other is None or other.shape != value.shape or value.size < 2 or value.dtype.kind not in "fiu":
            continue
        a, b = spread(value, shape), spread(other, shape)
        if a is not None and b is not None:
            yield Term(key, a, b, own)


def _same(a: Floats, b: Floats) -> bool:
    size = float(np.linalg.norm(a))
    return float(np.linalg.norm(a - b)) <= SAME * size if size > 0 else not b.any()
