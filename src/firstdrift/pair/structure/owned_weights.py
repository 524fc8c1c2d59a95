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
    ours: Outline, theirs: Outline, same: SameWeights, owners: Mapping[str, str], *, names: bool = True
) -> dict[int, Told]:  # fmt: skip
    """The counterpart of every weight that has one; `owners` are modules of ours with theirs."""
    found: dict[int, Told] = {a: (b, "weights", PROVEN_BITS) for a, b in same.one.items()}
    taken = {*same.theirs()}
    for name, other in owners.items():
        left = [n for n in ours.owned.get(name, ()) if n not in found and n not in same.ours()]
        right = [n for n in theirs.owned.get(other, ()) if n not in taken]
        for a, b in _in_owner(ours, left, theirs, right):
            found[a] = b, "structure", SURE
            taken.add(b)
    left = [n for n in range(len(ours.weights)) if n not in found and n not in same.ours()]
    left = [n for n in left if ours.weights[n].name not in owners or not ours.owned.get(owners[ours.weights[n].name])]
    right = [n for n in range(len(theirs.weights)) if n not in taken]
    return found | _in_order(ours, left, theirs, right, owners, names=names)


def _in_owner(ours: Outline, left: Sequence[int], theirs: Outline, right: Sequence[int]) -> list[tuple[int, int]]:
    """Weights of one layer: of one size, and of the same port, numbers or role, or the only ones of their size."""
    found: list[tuple[int, int]] = []

    def port(a: int, b: int) -> bool:
        return ours.weights[a].port == theirs.weights[b].port

    def numbers(a: int, b: int) -> bool:
        one, other = ours.values[a], theirs.values[b]
        return one is not None and other is not None and not one.is_constant and agree(one, other)

    def role(a: int, b: int) -> bool:
        return ours.weights[a].role == theirs.weights[b].role

    for alike in (port, numbers, role, None):
        left = [a for a in left if a not in {one for one, _ in found}]
        right = [b for b in right if b not in {one for _, one in found}]
        fits = {
            (a, b)
            for a in left
            for b in right
            if dims_of(ours.weights[a].record) == dims_of(theirs.weights[b].record) and (alike is None or alike(a, b))
        }
        for a, b in sorted(fits):
            if sum(a == one for one, _ in fits) == sum(b == one for _, one in fits) == 1:
                found.append((a, b))
    return found


def _in_order(
    ours: Outline, left: Sequence[int], theirs: Outline, right: Sequence[int], owners: Mapping[str, str], *, names: bool
) -> dict[int, Told]:
    if not left or not right:
        return {}
    a, b = [ours.weights[n] for n in left], [theirs.weights[n] for n in right]
    dims = _equal([dims_of(one.record) for one in a], [dims_of(one.record) for one in b])
    roles = _equal([one.role for one in a], [one.role for one in b])
    near = apart([ours.values[n] for n in left], [theirs.values[n] for n in right])
    plain = np.where(dims, SAME_DIMS, 0.0) + np.where(roles, SAME_ROLE, 0.0) + bits(near, 0.0)
    known = {"weight", "bias", "mean", "variance"}
    other = [[one.role in known for one in side] for side in (a, b)]
    plain += np.where(np.array(other[0])[:, None] & np.array(other[1])[None, :] & ~roles, OTHER_ROLE, 0.0)
    plain = np.where(dims, plain, 0.0)
    said = _shared_words(ours.words([f"{w.name}" for w in a]), theirs.words([f"{w.name}" for w in b]))
    scores = np.where(plain > 0, plain + (np.minimum(said, MOST_OF_NAMES) if names else 0.0), 0.0)
    aligned = align_sequences(scores)
    unnamed = margins(np.where(scores > 0, plain, 0.0), [(one.ours, one.theirs) for one in aligned])
    return {
        left[one.ours]: (right[one.theirs], "structure", one.margin)
        for one, margin in zip(aligned, unnamed, strict=True)
        if one.margin >= SURE and margin >= WITHOUT_NAMES
    }


def _equal(a: Sequence[object], b: Sequence[object]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.array([[one == other for other in b] for one in a], bool).reshape(len(a), len(b))
