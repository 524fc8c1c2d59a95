"""How often something happens in the cases, how sure that is, and whether it is in every one of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from ..strict_json import Json

Z = 1.959963984540054  # of a normal distribution, 95 % are within so many deviations
HALF = 0.5

ROBUST = "robust"
DEPENDENT = "batch-dependent"
UNDECIDED = "undecided"
CLEAN = "clean"


@dataclass(frozen=True, slots=True)
class Share:
    """`count` of `of` cases, and the Wilson interval of how often it is to be expected."""

    count: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true share is, with 95 % confidence, if the cases are independent."""
        if not self.of:
            return 0.0, 1.0
        n, p = self.of, self.count / self.of
        middle = p + Z * Z / (2 * n)
        spread = Z * sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
        low, high = ((middle + sign * spread) / (1 + Z * Z / n) for sign in (-1, 1))
        return 0.0 if not self.count else max(0.0, low), 1.0 if self.count == self.of else min(1.0, high)

    @property
    def pattern(self) -> str:
        """`robust` where it is in every case, of enough to expect it in most others; in some, `batch-dependent`.

        In every one of a few cases, it could be either.
        """
        if not self.count:
            return CLEAN
        if self.count < self.of:
            return DEPENDENT
        return ROBUST if self.interval[0] > HALF else UNDECIDED

    def to_json(self) -> dict[str, Json]:
        """The share with its interval and pattern."""
        return {"count": self.count, "of": self.of, "interval": list(self.interval), "pattern": self.pattern}

    def __str__(self) -> str:
        return f"{self.count} of {self.of} ({self.percent})"

    @property
    def percent(self) -> str:
        """The interval for people."""
        low, high = self.interval
        return f"{100 * low:.0f}-{100 * high:.0f} %"
