"""How often something happens in the cases, how sure that is, and first drifts grouped by place and cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from ..core.strict_json import Json
from .case_rows import Place, Row
from .cases import name_of

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


@dataclass(frozen=True, slots=True)
class Repeated:
    """A first drift at one place, introduced by one operation, in some of the cases."""

    place: Place
    introduced_by: str
    share: Share  # of the cases that were compared
    cases: tuple[str, ...]
    causes: dict[str, int]  # how often each label was named; `unknown` where none was
    why: str  # the first sentence that named the most frequent cause
    parameters: dict[str, Json] | None  # of the cause, where all cases agree on them

    @property
    def cause(self) -> str | None:
        """The label on which all cases agree."""
        labels = list(self.causes)
        return labels[0] if len(labels) == 1 and labels[0] != "unknown" else None


def repeated(rows: Sequence[Row]) -> list[Repeated]:
    """The first drifts, the most frequent first."""
    compared = [row for row in rows if not row.failed]
    grouped: dict[tuple[Place, str], list[Row]] = {}
    for row in compared:
        if row.first_drift is not None:
            grouped.setdefault((row.first_drift.place, row.first_drift.introduced_by), []).append(row)
    found = [_repeated(place, by, group, len(compared)) for (place, by), group in grouped.items()]
    return sorted(found, key=lambda one: -one.share.count)


def _repeated(place: Place, by: str, group: Sequence[Row], compared: int) -> Repeated:
    firsts = [row.first_drift for row in group if row.first_drift is not None]
    causes = Counter(first.label or "unknown" for first in firsts)
    most = causes.most_common(1)[0][0]
    of_it = [first for first in firsts if (first.label or "unknown") == most]
    agree = all(first.parameters == of_it[0].parameters for first in of_it)
    return Repeated(
        place, by, Share(len(group), compared), tuple(name_of(row.case) for row in group), dict(causes.most_common()),
        of_it[0].why, of_it[0].parameters if agree and len(causes) == 1 else None,
    )  # fmt: skip
