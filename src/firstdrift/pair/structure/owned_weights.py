"""Weights that numbers do not tell apart: by the run that holds them, by what they are in it, and by their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..moments import PROVEN_BITS, agree, apart, bits
from ..same_weights import SameWeights
from .likeness import MOST_OF_NAMES, SAME_DIMS, _shared_words
from .outline import Outline, dims_of
from .sequences import align_sequences, margins

Told = tuple[int, str, float]  # a place, how it was told, and how sure that is, in bits
SAME_ROLE, OTHER_ROLE = 2.0, -12.0
SURE, WITHOUT_NAMES = 3.0, 0.5


def weights_of_owners(
    reference: Outline, candidate: Outline, same: SameWeights, owners: Mapping[str, str], *, names: bool = True
) -> dict[int, Told]:  # fmt: skip
    """The counterpart of every weight that has one; `owners` are modules of the reference with the candidate's."""
    found: dict[int, Told] = {a: (b, "weights", PROVEN_BITS) for a, b in same.one.items()}
    taken = {*same.candidate()}
    for name, other in owners.items():
        left = [n for n in reference.owned.get(name, ()) if n not in found and n not in same.reference()]
        right = [n for n in candidate.owned.get(other, ()) if n not in taken]
        for a, b in _in_owner(reference, left, candidate, right):
            found[a] = b, "structure", SURE
            taken.add(b)
    left = [n for n in range(len(reference.weights)) if n not in found and n not in same.reference()]
    left = [
        n
        for n in left
        if reference.weights[n].name not in owners or not reference.owned.get(owners[reference.weights[n].name])
    ]
    right = [n for n in range(len(candidate.weights)) if n not in taken]
    return found | _in_order(reference, left, candidate, right, owners, names=names)


def _in_owner(
    reference: Outline, left: Sequence[int], candidate: Outline, right: Sequence[int]
) -> list[tuple[int, int]]:
    """Weights of one layer: of one size, and of the same port, numbers or role, or the only ones of their size."""
    found: list[tuple[int, int]] = []

    def port(a: int, b: int) -> bool:
        return reference.weights[a].port == candidate.weights[b].port

    def numbers(a: int, b: int) -> bool:
        one, other = reference.values[a], candidate.values[b]
        return one is not None and other is not None and not one.is_constant and agree(one, other)

    def role(a: int, b: int) -> bool:
        return reference.weights[a].role == candidate.weights[b].role

    for alike in (port, numbers, role, None):
        left = [a for a in left if a not in {one for one, _ in found}]
        right = [b for b in right if b not in {one for _, one in found}]
        fits = {
            (a, b)
            for a in left
            for b in right
            if dims_of(reference.weights[a].record) == dims_of(candidate.weights[b].record)
            and (alike is None or alike(a, b))
        }
        for a, b in sorted(fits):
            if sum(a == one for one, _ in fits) == sum(b == one for _, one in fits) == 1:
                found.append((a, b))
    return found


def _in_order(
    reference: Outline,
    left: Sequence[int],
    candidate: Outline,
    right: Sequence[int],
    owners: Mapping[str, str],
    *,
    names: bool,
) -> dict[int, Told]:
    if not left or not right:
        return {}
    a, b = [reference.weights[n] for n in left], [candidate.weights[n] for n in right]
    dims = _equal([dims_of(weight.record) for weight in a], [dims_of(weight.record) for weight in b])
    roles = _equal([weight.role for weight in a], [weight.role for weight in b])
    near = apart([reference.values[n] for n in left], [candidate.values[n] for n in right])
    plain = np.where(dims, SAME_DIMS, 0.0) + np.where(roles, SAME_ROLE, 0.0) + bits(near, 0.0)
    known = {"weight", "bias", "mean", "variance"}
    other = [[weight.role in known for weight in side] for side in (a, b)]
    plain += np.where(np.array(other[0])[:, None] & np.array(other[1])[None, :] & ~roles, OTHER_ROLE, 0.0)
    plain = np.where(dims, plain, 0.0)
    said = _shared_words(reference.words([f"{w.name}" for w in a]), candidate.words([f"{w.name}" for w in b]))
    scores = np.where(plain > 0, plain + (np.minimum(said, MOST_OF_NAMES) if names else 0.0), 0.0)
    aligned = align_sequences(scores)
    unnamed = margins(np.where(scores > 0, plain, 0.0), [(one.reference, one.candidate) for one in aligned])
    return {
        left[one.reference]: (right[one.candidate], "structure", one.margin)
        for one, margin in zip(aligned, unnamed, strict=True)
        if one.margin >= SURE and margin >= WITHOUT_NAMES
    }


def _equal(a: Sequence[object], b: Sequence[object]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.array([[one == other for other in b] for one in a], bool).reshape(len(a), len(b))
