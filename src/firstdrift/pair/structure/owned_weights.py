"""Weights that numbers do not tell apart: by the run that holds them, by what they are in it, and by their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..conventions import ROLES
from ..moments import PROVEN_BITS, agree, apart, bits
from ..same_weights import SameWeights
from .likeness import SAME_DIMS, equal_pairs, shared_words
from .outline import Outline, dims_of
from .sequences import align_sequences, margins

SAME_ROLE, OTHER_ROLE = 2.0, -12.0
SURE, WITHOUT_NAMES = 3.0, 0.5  # bits by which every other counterpart has to be worse; and names apart
KNOWN_ROLES = frozenset(ROLES.values())


class Found(NamedTuple):
    """A counterpart, what told it, and how sure that is, in bits."""

    to: int
    how: str
    bits: float


def weights_of_owners(
    reference: Outline, candidate: Outline, same: SameWeights, owners: Mapping[str, str], *, names: bool = True
) -> dict[int, Found]:  # fmt: skip
    """The counterpart of every weight that has one; `owners` are modules of the reference with the candidate's."""
    found = {a: Found(b, "weights", PROVEN_BITS) for a, b in same.one.items()}
    known, taken = same.reference(), same.candidate()
    for name, other in owners.items():
        left = [n for n in reference.owned.get(name, ()) if n not in found and n not in known]
        right = [n for n in candidate.owned.get(other, ()) if n not in taken]
        told = dict(_in_owner(reference, left, candidate, right))
        found |= {a: Found(b, "structure", SURE) for a, b in told.items()}
        taken |= set(told.values())
    left = [
        n
        for n, weight in enumerate(reference.weights)
        if n not in found
        and n not in known
        and (weight.name not in owners or not reference.owned.get(owners[weight.name]))
    ]
    right = [n for n in range(len(candidate.weights)) if n not in taken]
    return found | _in_order(reference, left, candidate, right, names=names)


def _in_owner(
    reference: Outline, left: Sequence[int], candidate: Outline, right: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Weights of one layer: of one size, and of the same port, numbers or role, or the only ones of their size."""

    def is_alike(a: int, b: int, by: str) -> bool:
        one, other = reference.weights[a], candidate.weights[b]
        if by == "numbers":
            values, others = reference.values[a], candidate.values[b]
            return values is not None and others is not None and not values.is_constant and agree(values, others)
        return by == "size" or (one.port == other.port if by == "port" else one.role == other.role)

    fits = [
        (a, b)
        for a in left
        for b in right
        if dims_of(reference.weights[a].record) == dims_of(candidate.weights[b].record)
    ]
    for by in ("port", "numbers", "role", "size"):
        alike = [(a, b) for a, b in fits if is_alike(a, b, by)]
        rows, columns = Counter(a for a, _ in alike), Counter(b for _, b in alike)
        sure = {a: b for a, b in alike if rows[a] == columns[b] == 1}
        yield from sure.items()
        fits = [(a, b) for a, b in fits if a not in sure and b not in sure.values()]


def _in_order(
    reference: Outline, left: Sequence[int], candidate: Outline, right: Sequence[int], *, names: bool
) -> dict[int, Found]:
    if not left or not right:
        return {}
    a, b = [reference.weights[n] for n in left], [candidate.weights[n] for n in right]
    dims = equal_pairs([dims_of(weight.record) for weight in a], [dims_of(weight.record) for weight in b])
    roles = equal_pairs([weight.role for weight in a], [weight.role for weight in b])
    known = np.logical_and.outer(*([weight.role in KNOWN_ROLES for weight in side] for side in (a, b)))
    near = apart([reference.values[n] for n in left], [candidate.values[n] for n in right])
    plain = SAME_DIMS + np.where(roles, SAME_ROLE, np.where(known, OTHER_ROLE, 0.0)) + bits(near, 0.0)
    plain = np.where(dims, plain, 0.0)
    said = shared_words([weight.name for weight in a], [weight.name for weight in b]) if names else 0.0
    scores = np.where(plain > 0, plain + said, 0.0)
    aligned = align_sequences(scores)
    unnamed = margins(np.where(scores > 0, plain, 0.0), [(one.reference, one.candidate) for one in aligned])
    return {
        left[one.reference]: Found(right[one.candidate], "structure", one.margin)
        for one, margin in zip(aligned, unnamed, strict=True)
        if one.margin >= SURE and margin >= WITHOUT_NAMES
    }
