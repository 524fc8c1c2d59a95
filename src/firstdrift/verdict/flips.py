"""Decision flips: a near-tie decided the other way, which moves or drops a few gradient elements.

A flip is legal only if each side's decision follows from that side's own forward values: a ReLU lets gradient
through where its own input is positive, a max-pool where its own window is largest. Whatever is left once those
elements are set aside must be noise, or it is no flip.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from .._kernels import measure
from ..traces import Array
from .equal_maxima import SHARED, shared_maxima
from .noise import WORST_OF_MANY
from .parts import LARGEST, worst_for_its_size

MOST = 0.05  # of the elements may be flipped by noise; more is a rule, not an accident
FEW_ROWS = 0.25  # of the rows may have been sent another way
TIE = 8.0  # how far apart, in units of the forward noise, two values may be and still count as a tie

AMOUNT = 0.05  # by which a gradient may differ that went to another element, and still be the same one
FLIP_IN_GRADIENT = 2e-2  # twice the largest that one flip was seen to change in the gradient of a parameter
FLIP_REACH = 8.0  # how many times its share of the elements, by norm, a flip can weigh in a gradient
LET_THROUGH = 0.5  # of the gradients between two kinks, at least
MANY = 4  # choices that differ, from which on their share is looked at

Floats = NDArray[np.float64]


def explained_by_flips(
    gradients: tuple[Array, Array], forwards: tuple[Array, Array], limit: float, noise: float
) -> str | None:
    """How decisions of the forward pass explain gradients that differ beyond `limit`, in words; None if they do not.

    `forwards` are both sides' values that the decisions were taken on, and `noise` their relative difference.
    """
    found = _together(gradients, forwards, noise)
    if found is None:
        return None
    ours, theirs, x, z, tie = found
    flipped = _at_kink(ours, theirs, x, z, 0.0, tie)
    if _only_there(ours, theirs, flipped, limit):
        return f"{int(flipped.sum())} of {flipped.size} signs were decided the other way at a near-tie"
    cap = _cap(ours, theirs, x, flipped)
    if cap is not None and _only_there(ours, theirs, both := flipped | _at_kink(ours, theirs, x, z, cap, tie), limit):
        return f"{int(both.sum())} of {both.size} values were cut off the other way at a near-tie with 0 or {cap:.6g}"
    windows = _routed(ours, theirs, x, z, tie, limit)
    if windows is not None:
        return f"{windows} maxima were decided the other way at a near-tie"
    shared = shared_maxima(ours, theirs, x, z, limit)
    return None if shared is None else f"the gradient of {shared} maxima was {SHARED}"


def explained_by_kinks(
    gradients: tuple[Array, Array], outputs: tuple[Array, Array], limit: float, noise: float
) -> str | None:
    """How outputs of zero explain a loss's gradient that differs beyond `limit`, in words; None if they do not.

    A loss with a clamp or an absolute value in it has a kink there, where each formula takes its own subgradient.
    """
    found = _together(gradients, outputs, noise)
    if found is None:
        return None
    ours, theirs, x, z, tie = found
    there = ((x == 0) != (z == 0)) & (np.abs(x) <= tie) & (np.abs(z) <= tie)
    if not _only_there(ours, theirs, there, limit):
        return None
    return f"{int(there.sum())} of {there.size} outputs of a side are on a kink of the loss, at 0"


def _together(
    gradients: tuple[Array, Array], forwards: tuple[Array, Array], noise: float
) -> tuple[Floats, Floats, Floats, Floats, float] | None:
    """Both gradients and what they were decided on, and how close to a kink is a tie; None if they do not fit."""
    if gradients[0].shape != forwards[0].shape or prod(gradients[0].shape) > LARGEST:
        return None
    if any(array.dtype.kind == "c" for array in (*gradients, *forwards)):
        return None
    ours, theirs, x, z = (np.asarray(array, np.float64) for array in (*gradients, *forwards))
    if not all(np.isfinite(a).all() for a in (ours, theirs, x, z)):
        return None
    return ours, theirs, x, z, TIE * max(noise, 1e-300) * float(np.sqrt(np.mean(x**2)))


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
    if not (_are_largest(flat[0], x, tie) or _are_largest(flat[0], -x, tie)):
        return None
    # Each side chose by its own values, and by the reference's the two were as good as equal.
    return bool(np.all((np.abs(chosen - other) <= tie)[differing] & (np.abs(own - rival) <= 2 * tie)[differing]))


def _are_largest(chosen: NDArray[np.int64], values: Floats, tie: float) -> bool:
    """Whether what was chosen along the last axis is the largest there is: then it was chosen by these values."""
    left = values.copy()
    np.put_along_axis(left, chosen, -np.inf, -1)
    least = np.take_along_axis(values, chosen, -1).min(-1)
    return bool(np.all(least >= left.max(-1) - tie))


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


def _at_kink(ours: Floats, theirs: Floats, x: Floats, z: Floats, kink: float, tie: float) -> NDArray[np.bool_]:
    """Where two sides are on either side of a kink and next to it. On the kink itself, which the numbers of a short
    format often hit, a side may let its gradient through or not: both are subgradients."""
    near = (np.abs(x - kink) <= tie) & (np.abs(z - kink) <= 2 * tie)
    on_it = ((x == kink) | (z == kink)) & ((ours == 0) != (theirs == 0))
    found: NDArray[np.bool_] = near & (((x > kink) != (z > kink)) | on_it)
    return found


def _cap(ours: Floats, theirs: Floats, x: Floats, flipped: NDArray[np.bool_]) -> float | None:
    """The value beyond which no gradient is let through on either side, as of a ReLU6 or a clamp; None if there is
    none. It is where the gradients are that one side alone cuts off."""
    one_sided = ((ours == 0) != (theirs == 0)) & ~flipped
    if not one_sided.any():
        return None
    cap = float(np.median(x[one_sided]))
    beyond = x > cap if cap > 0 else x < cap
    beyond &= ~one_sided
    inside = (np.sign(x) == np.sign(cap)) & (np.abs(x) < abs(cap)) & ~one_sided
    if not (cap and beyond.any() and inside.any()) or ours[beyond].any() or theirs[beyond].any():
        return None
    return cap if min(np.mean(ours[inside] != 0), np.mean(theirs[inside] != 0)) >= LET_THROUGH else None


def _only_there(ours: Floats, theirs: Floats, flipped: NDArray[np.bool_], limit: float) -> bool:
    count = int(flipped.sum())
    if not 0 < count <= MOST * flipped.size:
        return False
    rest = np.where(flipped, ours, theirs)
    allowed = limit * float(np.linalg.norm(ours))
    if float(np.linalg.norm(theirs - ours)) <= allowed:  # a part alone is beyond noise, and must be so by its flips
        return worst_for_its_size(ours, rest, measure(ours, rest)) <= WORST_OF_MANY * limit
    return float(np.linalg.norm(rest - ours)) <= allowed


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
