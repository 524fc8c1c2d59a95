"""Sums that cancel: a tensor next to zero whose terms are recorded, so that both sides can be added up again.

A bias before a norm has a gradient of zero, and whatever is found there is the rounding of its terms. That it is such a
sum is not taken for granted: the reference's own terms must come to what it recorded, over some of their axes, and the
candidate's own terms to what the candidate did.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import prod

import numpy as np

from ..traces import Array

MOST_AXES = 5
LARGEST = 1 << 26  # elements that are added up once more


def is_sum_of_own_terms(result: tuple[Array, Array], terms: tuple[Array, Array], limit: float) -> bool:
    """Whether both sides' results are sums, or means, of their own terms over the same axes, each element up to `limit`
    times the root of the sum of its terms' squares."""
    if (
        terms[0].ndim > MOST_AXES
        or not 0 < terms[0].size <= LARGEST
        or any(one.dtype.kind not in "fV" for one in terms)
    ):
        return False
    return any(
        all(_adds_up(made, given, axes, mean, limit) for made, given in zip(result, terms, strict=True))
        for axes, mean in _ways(result[0].shape, terms[0].shape)
    )


def _ways(result: tuple[int, ...], terms: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Axes whose sum, or mean, has the shape of the result."""
    left = [size for size in result if size != 1]
    for count in range(1, len(terms) + 1):
        for axes in combinations(range(len(terms)), count):
            if [size for axis, size in enumerate(terms) if axis not in axes and size != 1] == left:
                yield axes, False
                yield axes, True


def _adds_up(result: Array, terms: Array, axes: tuple[int, ...], mean: bool, limit: float) -> bool:
    if result.size * prod(terms.shape[axis] for axis in axes) != terms.size:
        return False
    wide = np.asarray(terms, np.float64)
    total, size = wide.sum(axes), np.sqrt((wide**2).sum(axes))
    count = terms.size / result.size if mean else 1.0
    error = np.abs(np.asarray(result, np.float64).reshape(total.shape) * count - total)
    return bool((error <= limit * size).all())
