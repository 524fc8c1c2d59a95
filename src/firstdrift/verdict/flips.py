"""Decision flips: a near-tie decided the other way, which moves or drops a few gradient elements.

A flip is legal only if each side's decision follows from that side's own forward values: a ReLU lets gradient
through where its own input is positive, a max-pool where its own window is largest. Whatever is left once those
elements are set aside must be noise, or it is no flip.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from ..traces import Array

MOST = 0.05  # of the elements may be flipped by noise; more is a rule, not an accident
FEW_ROWS = 0.25  # of the rows may have been sent another way
TIE = 8.0  # how far apart, in units of the forward noise, two values may be and still count as a tie

AMOUNT = 0.05  # by which a gradient may differ that went to another element, and still be the same one
FLIP_IN_GRADIENT = 2e-2  # twice the largest that one flip was seen to change in the gradient of a parameter
FLIP_REACH = 8.0  # how many times its share of the elements, by norm, a flip can weigh in a gradient
LARGEST = 1 << 26  # elements that are looked at for flips
MANY = 4  # choices that differ, from which on their share is looked at

Floats = NDArray[np.float64]


def explained_by_flips(
    gradients: tuple[Array, Array], forwards: tuple[Array, Array], limit: float, noise: float
) -> str | None:
    """How decisions of the forward pass explain gradients that differ beyond `limit`, in words; None if they do not.

    `forwards` are both sides' values that the decisions were taken on, and `noise` their relative difference.
    """
    if gradients[0].shape != forwards[0].shape or prod(gradients[0].shape) > LARGEST:
        return None
    ours, theirs = (np.asarray(g, np.float64) for g in gradients)
    x, z = (np.asarray(f, np.float64) for f in forwards)
    if not all(np.isfinite(a).all() for a in (ours, theirs, x, z)):
        return None
    tie = TIE * max(noise, 1e-300) * float(np.sqrt(np.mean(x**2)))
    flipped = ((x > 0) != (z > 0)) & (np.abs(x) <= tie)
    if _only_there(ours, theirs, flipped, limit):
        return f"{int(flipped.sum())} of {flipped.size} signs were decided the other way at a near-tie"
    windows = _routed(ours, theirs, x, z, tie, limit)
    return None if windows is None else f"{windows} maxima were decided the other way at a near-tie"


def sign_changes(ours: Array, theirs: Array) -> int:
    """How many elements are above zero on one side alone: a ReLU's mask, before or after it."""
    if ours.dtype.kind in "cb" or ours.size > LARGEST:
        return 0
    return int(np.count_nonzero(np.greater(ours, 0) != np.greater(theirs, 0)))


def tied_choices(indices: tuple[Array, Array], values: tuple[Array, Array], noise: float) -> bool | None:
    """Whether choices along the last axis of `values` differ at near-ties only; None if these are not their values."""
    ours, theirs = (np.asarray(index, np.int64) for index in indices)
    x, z = (np.asarray(value, np.float64) for value in values)
    if x.ndim == 0 or ours.shape not in (x.shape[:-1], (*x.shape[:-1], ours.shape[-1] if ours.ndim else 0)):
        return None
    if min(ours.min(), theirs.min()) < 0 or max(ours.max(), theirs.max()) >= x.shape[-1]:
        return None
    flat = ours.reshape(*x.shape[:-1], -1), theirs.reshape(*x.shape[:-1], -1)
    chosen, other = (np.take_along_axis(x, index, -1) for index in flat)
    own, rival = (np.take_along_axis(z, index, -1) for index in flat[::-1])
    differing = flat[0] != flat[1]
    tie = TIE * noise * float(np.sqrt(np.mean(x**2)))
    # Each side chose by its own values, and by the reference's the two were as good as equal.
    return bool(np.all((np.abs(chosen - other) <= tie)[differing] & (np.abs(own - rival) <= 2 * tie)[differing]))


def in_few_places(ours: Array, theirs: Array, limit: float) -> bool:
    """Whether all error beyond `limit` sits in a few elements, or in a few rows, as that of a decision does."""
    if ours.size < 2 or ours.size > LARGEST or ours.dtype.kind not in "fV":
        return False
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    squares = np.nan_to_num((b - a) ** 2, nan=np.inf)
    allowed = limit**2 * float(np.sum(a[np.isfinite(a)] ** 2))
    rows = squares.reshape(-1, squares.shape[-1]).sum(-1) if squares.ndim > 1 else squares
    return any(
        float(np.sum(np.sort(parts)[: parts.size - int(most * parts.size)])) <= allowed
        for parts, most in ((squares.reshape(-1), MOST), (rows, FEW_ROWS))
        if most * parts.size >= 1
    )


def _only_there(ours: Floats, theirs: Floats, flipped: NDArray[np.bool_], limit: float) -> bool:
    count = int(flipped.sum())
    if not 0 < count <= MOST * flipped.size:
        return False
    rest = float(np.linalg.norm(np.where(flipped, 0.0, theirs - ours)))
    return rest <= limit * float(np.linalg.norm(ours))


def _routed(ours: Floats, theirs: Floats, x: Floats, z: Floats, tie: float, limit: float) -> int | None:
    """The number of windows whose gradient went to another of two tied maxima, if that explains the difference."""
    lost = (ours != 0) & (theirs == 0)  # what is not the maximum of its window gets nothing at all
    gained = (ours == 0) & (theirs != 0)
    count = int(lost.sum())
    if count != int(gained.sum()) or not _only_there(ours, theirs, lost | gained, limit):
        return None
    free = {tuple(index) for index in np.argwhere(gained)}
    slack = limit * float(np.sqrt(np.mean(ours**2)))
    for index in map(tuple, np.argwhere(lost)):
        partner = next((other for other in free if _took_over(index, other, ours, theirs, x, z, tie, slack)), None)
        if partner is None:
            return None
        free.remove(partner)
    return count


def _took_over(
    index: tuple[int, ...], other: tuple[int, ...], ours: Floats, theirs: Floats, x: Floats, z: Floats, tie: float,
    slack: float,
) -> bool:  # fmt: skip
    """Whether `other` has the gradient that `index` lost: the same amount, tied values, each side by its own."""
    same_amount = abs(theirs[other] - ours[index]) <= AMOUNT * abs(ours[index]) + slack
    own_choice = x[index] >= x[other] and z[other] >= z[index]
    return bool(same_amount and abs(x[index] - x[other]) <= tie and own_choice)
