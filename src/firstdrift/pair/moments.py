"""What is left of a tensor when its axes, its order and its shape are forgotten: enough to know it again.

The extremes, the sum and the norm of two tensors agree if one is the other in another layout, and hardly ever
otherwise. They add up, too: a fused tensor has the sums of its parts. Where order is asked for as well, a sum with
weights that depend on the place tells a tensor from its transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import roundoff
from ..core.records import Record
from ..core.traces import Array, Trace
from ..kernels import stats

EXACT = 1e-6  # of the largest element: the same numbers, summed in another order
PROVEN_BITS = 24.0
TIERS = ((EXACT, PROVEN_BITS), (1e-4, 14.0), (1e-2, 6.0))  # how near two are, and how many bits that says

SAMPLED = 1 << 16  # elements that tell the order

Matrix = NDArray[np.float64]
Groups = tuple[NDArray[np.int64], NDArray[np.int64]]  # of either side: which tensors are one


class Numbers(NamedTuple):
    """Of the finite elements of a tensor; `fine` is how finely they are stored."""

    size: int
    low: float
    high: float
    total: float
    square: float
    fine: float
    order: float = 0.0  # the elements weighted by their places, where that was asked for

    @property
    def is_constant(self) -> bool:
        """Whether they are one number over and over, which is found everywhere and says nothing."""
        return self.low == self.high


def numbers_of(trace: Trace, record: Record | None, *, ordered: bool = False) -> Numbers | None:
    """The numbers of a recorded tensor; None where there are none to be had."""
    if record is None or record.at is None or record.dtype is None or not record.nbytes:
        return None
    array = trace.array(record)
    found = stats(array)
    if found.finite_count == 0 or found.min is None or found.max is None or found.mean is None:
        return None
    count = found.finite_count
    return Numbers(
        count, float(found.min), float(found.max), found.mean * count, found.l2 * found.l2, roundoff(record.dtype),
        _by_place(array) if ordered else 0.0,
    )  # fmt: skip


def _by_place(array: Array) -> float:
    """A sum of elements, each weighted by its place in the order in which they lie: what a reshape does not change."""
    flat = array.reshape(-1)
    step = max(1, flat.size // SAMPLED)
    some = np.asarray(flat[::step].real, np.float64)
    return float(np.dot(np.where(np.isfinite(some), some, 0.0), np.sin(np.arange(some.size) + 1.0)))


def joined(parts: Sequence[Numbers]) -> Numbers:
    """The numbers of several tensors taken together."""
    return Numbers(
        sum(part.size for part in parts), min(part.low for part in parts), max(part.high for part in parts),
        sum(part.total for part in parts), sum(part.square for part in parts), max(part.fine for part in parts),
    )  # fmt: skip


def agree(one: Numbers, other: Numbers) -> bool:
    """Whether both can be the same elements, in the coarser of the two dtypes."""
    near = max(EXACT, 4 * max(one.fine, other.fine))
    return float(apart([one], [other])[0, 0]) <= near


def apart(reference: Sequence[Numbers | None], candidate: Sequence[Numbers | None]) -> Matrix:
    """How far each tensor of the reference is from each of the candidate, in units of the largest element; infinite
    where counts differ."""
    (count, low, high, total, square), (count2, low2, high2, total2, square2) = (
        _columns(reference)[:5, :, None],
        _columns(candidate)[:5, None],
    )
    with np.errstate(all="ignore"):
        scale = np.maximum(np.maximum(np.abs(low), np.abs(high)), 1e-300)
        distance = np.maximum(np.abs(low - low2), np.abs(high - high2)) / scale
        norm = np.sqrt(np.maximum(square, 1e-300))
        distance = np.maximum(distance, np.abs(np.sqrt(square2) - norm) / norm)
        # A sum cancels, so that it is held to what its terms can make of it.
        distance = np.maximum(distance, np.abs(total - total2) / (norm * np.sqrt(np.maximum(count, 1))))
    return np.where((count == count2) & np.isfinite(distance), distance, np.inf)


def in_order(reference: Sequence[Numbers | None], candidate: Sequence[Numbers | None]) -> Matrix:
    """How far they are by what their order makes of them, in units of their norm."""
    a, b = _columns(reference)[:, :, None], _columns(candidate)[:, None]
    with np.errstate(all="ignore"):
        distance = np.abs(a[6] - b[6]) / np.sqrt(np.maximum(a[4], 1e-300))
    return np.where(np.isfinite(distance), distance, np.inf)


def _columns(side: Sequence[Numbers | None]) -> Matrix:
    nothing = (-1, *[np.nan] * 6)
    return np.array([nothing if numbers is None else numbers for numbers in side], np.float64).reshape(len(side), 7).T


def bits(distance: Matrix, fine: float, groups: Groups | None = None) -> Matrix:
    """What it says that two tensors are as near as that: less, the more others are as near. Those of one group are one
    tensor, and no rivals."""
    found = np.zeros(distance.shape)
    for near, said in TIERS:
        close = distance <= max(near, 4 * fine)
        if not close.any():
            continue
        rivals = np.maximum(_others(close, groups and groups[1])[:, None], _others(close.T, groups and groups[0])[None])
        found = np.maximum(found, np.where(close, said / np.maximum(rivals, 1), 0.0))
    return found


def _others(close: NDArray[np.bool_], group: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """With how many tensors of the other side each is close."""
    counted: NDArray[np.int64] = close.sum(1)
    for i in np.nonzero(counted > 1)[0] if group is not None else ():
        counted[i] = len(np.unique(group[close[i]]))  # type: ignore[index]
    return counted
