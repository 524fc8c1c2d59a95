"""What the cases say of each site together: errors with their spread, how often it drifts, what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import fmean, median

from ..core.sites import PHASE_RANK
from ..errors import SelectionError
from .case_rows import DRIFTS, GRAVITY, Place, Row, SiteRow
from .cases import name_of
from .shares import CLEAN, Share

DECIDED = DRIFTS | {"same", "noise", "flip"}
GRADIENTS = ("grad", "grad_scaled")
ORDERS = ("error", "abs")  # relative L2 error, or largest absolute difference, which large layers lead


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


@dataclass
class _Gathered:
    verdicts: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    largest: list[float] = field(default_factory=list)
    relative: list[float] = field(default_factory=list)
    nonfinite: int = 0
    mismatched: int = 0
    missing: int = 0
    extra: int = 0
    rank: int = 0


def summarise(rows: Sequence[Row]) -> list[SiteSummary]:
    """Every site of any case, sorted by phase and then in causal order."""
    gathered: dict[Place, _Gathered] = {}
    for row in rows:
        case = name_of(row.case)
        for place, lines in _by_place(row.sites).items():
            one = gathered.setdefault(place, _Gathered(rank=len(gathered)))
            one.verdicts.append(min((line.verdict for line in lines), key=GRAVITY.index))
            errors = [line.error for line in lines if line.error is not None and isfinite(line.error)]
            one.errors |= {case: max(errors)} if errors else {}
            one.largest += _largest(line.max_abs for line in lines)
            one.relative += _largest(line.max_rel for line in lines)
            one.nonfinite += any(any(line.nonfinite) for line in lines)
            one.mismatched += any(line.mismatched for line in lines)
        for place in row.missing:
            gathered.setdefault(place, _Gathered(rank=len(gathered))).missing += 1
        for place in row.extra:
            gathered.setdefault(place, _Gathered(rank=len(gathered))).extra += 1
    ordered = sorted(gathered, key=lambda place: (PHASE_RANK.get(place[0], len(PHASE_RANK)), gathered[place].rank))
    return [_summary(place, gathered[place]) for place in ordered]


def _largest(numbers: Iterable[float | None]) -> list[float]:
    """The largest of those there are, if there are any."""
    found = [number for number in numbers if number is not None]
    return [max(found)] if found else []


def _by_place(lines: Iterable[SiteRow]) -> dict[Place, list[SiteRow]]:
    found: dict[Place, list[SiteRow]] = {}
    for line in lines:
        found.setdefault(line.place, []).append(line)
    return found


def _summary(place: Place, gathered: _Gathered) -> SiteSummary:
    errors = list(gathered.errors.values())
    decided = [verdict for verdict in gathered.verdicts if verdict in DECIDED]
    counts = Counter(gathered.verdicts)
    return SiteSummary(
        *place, len(gathered.verdicts), gathered.missing, gathered.extra, {v: counts[v] for v in GRAVITY if counts[v]},
        fmean(errors) if errors else None, max(errors, default=None), median(errors) if errors else None,
        fmean(gathered.largest) if gathered.largest else None, max(gathered.largest, default=None),
        fmean(gathered.relative) if gathered.relative else None, gathered.nonfinite, gathered.mismatched,
        Share(sum(verdict in DRIFTS for verdict in decided), len(decided)),
        Share(sum(verdict == "flip" for verdict in decided), len(decided)),
        max(gathered.errors, key=gathered.errors.__getitem__) if errors and max(errors) > 0 else None,
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
