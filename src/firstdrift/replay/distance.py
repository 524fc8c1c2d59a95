"""How far tensors are apart, part by part, so that none needs to be whole in memory."""

from __future__ import annotations

from math import inf, sqrt

from .._kernels import measure
from ..traces import Array
from .operation import as_floats

AT_ONCE = 1 << 20  # elements that are brought to float64 at a time


class Distance:
    """The relative L2 distance of what was found from what was expected, as parts of both come in."""

    __slots__ = ("apart", "count", "difference", "norm")

    def __init__(self) -> None:
        self.difference = self.norm = 0.0  # sums of squares
        self.count = 0
        self.apart = False  # whether one side alone is not finite somewhere

    def add(self, expected: Array, found: Array) -> None:
        """Take a part of each."""
        flat = expected.reshape(-1), found.reshape(-1)
        for start in range(0, expected.size, AT_ONCE):
            numbers = measure(*(as_floats(side[start : start + AT_ONCE]) for side in flat), full=False)
            self.count += numbers.count
            self.apart |= not numbers.nonfinite_agree
            self.difference += (numbers.rms or 0.0) ** 2 * numbers.compared
            self.norm += numbers.norm_reference**2

    @property
    def relative(self) -> float:
        """The distance, relative to what was expected."""
        if self.apart:
            return inf
        if not self.norm:
            return inf if self.difference else 0.0
        return sqrt(self.difference / self.norm)


def relative(expected: Array, found: Array) -> float:
    """The relative L2 distance of two whole tensors."""
    distance = Distance()
    distance.add(expected, found)
    return distance.relative
