"""What the cases say together: how often something happens and how sure that is, of first drifts, of each site, and of
the gradients of each parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from statistics import fmean, median

from ..core.sites import PHASE_RANK
from ..core.strict_json import Json
from ..errors import SelectionError
from .case_rows import DRIFTS, GRAVITY, Place, Row, SiteRow
from .cases import name_of

Z = 1.959963984540054  # of a normal distribution, 95 % are within so many deviations
HALF = 0.5

ROBUST = "robust"
DEPENDENT = "batch-dependent"
UNDECIDED = "undecided"
CLEAN = "clean"
DECIDED = DRIFTS | {"same", "noise", "flip"}
GRADIENTS = ("grad", "grad_scaled")
ORDERS = ("error", "abs")  # relative L2 error, or largest absolute difference, which large layers lead


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

    @property
    def sentence(self) -> str:
        """The pattern for people."""
        if self.pattern in (ROBUST, DEPENDENT):
            return self.pattern
        return f"in every case, but {self.of} {'is' if self.of == 1 else 'are'} too few to call it robust"

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


@dataclass(frozen=True, slots=True)
class SiteSummary:
    """One site over all cases; the steps, samples and calls of a case are one, in which the worst counts.

    Means and maxima are over the cases in which the number exists; `nonfinite` counts those where either side has NaN
    or Inf. `drifts` and `flips` are of the cases in which the site could be judged by itself: not where its error was
    inherited.
    """

    phase: str
    name: str
    port: str
    cases: int  # that have the pair
    missing: int  # that have it in the reference alone
    extra: int  # in the candidate alone
    counts: dict[str, int]
    error_mean: float | None
    error_max: float | None
    error_usual: float | None  # the median
    abs_mean: float | None
    abs_max: float | None
    rel_mean: float | None  # of the largest difference relative to the reference's element
    nonfinite: int
    mismatched: int
    drifts: Share
    flips: Share
    worst: str | None  # the case with the largest error

    @property
    def place(self) -> Place:
        """Phase, name and port."""
        return self.phase, self.name, self.port

    @property
    def pattern(self) -> str:
        """Of its drifts; where it has none, of its flips."""
        return self.drifts.pattern if self.drifts.count else self.flips.pattern


def summarise(rows: Sequence[Row]) -> list[SiteSummary]:
    """Every site of any case, sorted by phase and then in causal order."""
    found: dict[Place, dict[str, SiteRow]] = {}  # by case
    for row in rows:
        by_place: dict[Place, list[SiteRow]] = {}
        for line in row.sites:
            by_place.setdefault(line.place, []).append(line)
        for place, lines in by_place.items():
            found.setdefault(place, {})[name_of(row.case)] = _worst(lines)
        for place in (*row.missing, *row.extra):
            found.setdefault(place, {})
    missing, extra = (Counter(place for row in rows for place in getattr(row, side)) for side in ("missing", "extra"))
    ordered = sorted(found, key=lambda place: PHASE_RANK.get(place[0], len(PHASE_RANK)))
    return [_summary(place, found[place], missing[place], extra[place]) for place in ordered]


def _worst(lines: Sequence[SiteRow]) -> SiteRow:
    """The steps of one case as one line, in which the worst counts."""

    def largest(key: str, *, finite: bool = False) -> float | None:
        numbers = [number for line in lines if (number := getattr(line, key)) is not None]
        return max((number for number in numbers if isfinite(number) or not finite), default=None)

    return replace(
        lines[0], verdict=min((line.verdict for line in lines), key=GRAVITY.index), error=largest("error", finite=True),
        max_abs=largest("max_abs"), max_rel=largest("max_rel"), nonfinite=max(line.nonfinite for line in lines),
        mismatched=max(line.mismatched for line in lines),
    )  # fmt: skip


def _summary(place: Place, cases: dict[str, SiteRow], missing: int, extra: int) -> SiteSummary:
    lines = cases.values()
    counts = Counter(line.verdict for line in lines)
    errors = {case: line.error for case, line in cases.items() if line.error is not None}

    def over(take: Callable[[Sequence[float]], float], key: str) -> float | None:
        numbers = [number for line in lines if (number := getattr(line, key)) is not None]
        return take(numbers) if numbers else None

    def share(verdicts: frozenset[str]) -> Share:
        return Share(sum(counts[verdict] for verdict in verdicts), sum(counts[verdict] for verdict in DECIDED))

    return SiteSummary(
        *place, len(cases), missing, extra, {verdict: counts[verdict] for verdict in GRAVITY if counts[verdict]},
        over(fmean, "error"), over(max, "error"), over(median, "error"), over(fmean, "max_abs"), over(max, "max_abs"),
        over(fmean, "max_rel"), sum(any(line.nonfinite) for line in lines), sum(line.mismatched > 0 for line in lines),
        share(DRIFTS), share(frozenset({"flip"})),
        max(errors, key=errors.__getitem__) if any(errors.values()) else None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ParameterSummary:
    """The gradients of one parameter, raw and as the optimizer sees them, side by side."""

    name: str
    port: str
    raw: SiteSummary | None
    scaled: SiteSummary | None

    def size(self, by: str) -> tuple[int, float, float]:
        """What to sort by, one of ORDERS: NaN and missing ones first, then the larger mean, then the largest."""
        both = [summary for summary in (self.raw, self.scaled) if summary is not None]
        lost = sum(summary.mismatched + summary.missing for summary in both) + sum(
            summary.counts.get("drift", 0) and summary.error_mean is None for summary in both
        )
        mean, most = (max(getattr(summary, f"{by}_{which}") or 0.0 for summary in both) for which in ("mean", "max"))
        return int(lost), mean, most

    @property
    def pattern(self) -> str:
        """The raw gradient's, or the scaled one's where that says more."""
        both = [summary.pattern for summary in (self.raw, self.scaled) if summary is not None]
        return next((pattern for pattern in both if pattern != CLEAN), CLEAN)


def parameters(sites: Sequence[SiteSummary], by: str = "error") -> list[ParameterSummary]:
    """The gradients of every parameter, the worst first."""
    if by not in ORDERS:
        raise SelectionError(f"gradients cannot be sorted by {by!r}; choose {' or '.join(ORDERS)}")
    found: dict[tuple[str, str], dict[str, SiteSummary]] = {}
    for site in sites:
        if site.phase in GRADIENTS:
            found.setdefault((site.name, site.port), {})[site.phase] = site
    both = [ParameterSummary(*key, one.get("grad"), one.get("grad_scaled")) for key, one in found.items()]
    return sorted(both, key=lambda one: one.size(by), reverse=True)
