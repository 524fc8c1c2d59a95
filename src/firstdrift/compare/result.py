"""The result of a comparison, as data. Reports and JSON are functions of it; nothing here measures or judges."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NoReturn

from .._kernels import Measurement
from ..sites import Site
from ..strict_json import plain
from .pairs import Pair, Unmatched

SCHEMA = "firstdrift-diff-v1"


class Verdict(StrEnum):
    """The judgement of one pair, or of a run. It cannot be read as a truth value by accident."""

    SAME = "same"
    NOISE = "noise"
    FLIP = "flip"
    PRECISION = "precision"
    INHERITED = "inherited"
    DRIFT = "drift"
    MISSING = "missing"
    NOT_COMPARABLE = "not comparable"
    INCONCLUSIVE = "inconclusive"

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the verdict {self.value!r} is not a truth value; compare it, or use result.exit_code")


CLEAN = frozenset({Verdict.SAME, Verdict.NOISE, Verdict.FLIP})


@dataclass(frozen=True, slots=True)
class Cause:
    """The named transformation that turns the reference's tensor into the candidate's."""

    label: str
    sentence: str
    confidence: float = 0.0
    confirm: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    runner_up: str | None = None  # the label of the next best explanation
    margin: float | None = None  # how many times as much the runner-up leaves unexplained, noise included


@dataclass(frozen=True, slots=True)
class PairResult:
    """One pair, measured and judged.

    `error` is the relative L2 error and `limit` how large it could be by noise alone. Where the reference could be
    replayed on the candidate's own inputs, `introduced` is the error against what it makes of them, and `inherited`
    how far that is from the reference's tensor; elsewhere `inherited` is the largest error among what the site was
    computed from. `reason` says in words what decided.
    """

    pair: Pair
    verdict: Verdict
    reason: str
    measurement: Measurement | None = None
    error: float | None = None
    inherited: float | None = None
    limit: float | None = None
    introduced_by: str | None = None
    introduced: float | None = None

    @property
    def site(self) -> Site:
        return self.pair.site


@dataclass(frozen=True, slots=True)
class FirstDrift:
    """The earliest site that noise does not explain and whose own inputs were clean."""

    step: int
    phase: str
    name: str
    port: str
    call: int
    sample: int | None
    introduced_by: str
    cause: Cause | None
    sentence: str
    repeats: tuple[str, ...] = ()  # modules of other layers that drift at the same place

    @property
    def site(self) -> Site:
        return Site(self.step, self.phase, self.name, self.port, self.call, self.sample)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much was compared, on both sides."""

    reference_sites: int
    candidate_sites: int
    pairs: int
    compared: int  # pairs with at least one element measured
    elements: int
    phases: dict[str, int]  # compared pairs by phase


@dataclass(frozen=True, slots=True)
class Result:
    """What a comparison found. `exit_code` is what CI needs; a result is not a truth value."""

    verdict: Verdict
    sentence: str
    pairs: tuple[PairResult, ...]
    first_drift: FirstDrift | None
    cause: Cause | None
    flips: tuple[PairResult, ...]
    reference_only: tuple[Unmatched, ...]
    candidate_only: tuple[Unmatched, ...]
    ignored: tuple[Unmatched, ...]
    graph: str
    coverage: Coverage
    notes: tuple[str, ...]
    problems: tuple[str, ...]  # whatever keeps a clean verdict from being green
    exit_code: int

    def __bool__(self) -> NoReturn:
        raise TypeError("a result is not a truth value; look at result.verdict or result.exit_code")

    @property
    def counts(self) -> dict[str, int]:
        """How many pairs had each verdict; unmatched reference sites count as missing."""
        counted = Counter(str(pair.verdict) for pair in self.pairs)
        counted.update({str(Verdict.MISSING): len(self.reference_only)} if self.reference_only else {})
        return {str(verdict): counted[str(verdict)] for verdict in Verdict if counted[str(verdict)]}

    def to_json(self) -> dict[str, Any]:
        """The result in the schema `firstdrift-diff-v1`."""
        first = None
        if self.first_drift is not None:
            first = {**self.first_drift.site._asdict(), "introduced_by": self.first_drift.introduced_by}
            first["cause"] = None if self.first_drift.cause is None else asdict(self.first_drift.cause)
            first["sentence"] = self.first_drift.sentence
            first["repeats"] = list(self.first_drift.repeats)
        said = {
            "schema": SCHEMA,
            "verdict": str(self.verdict),
            "sentence": self.sentence,
            "exit_code": self.exit_code,
            "cause": None if self.cause is None else asdict(self.cause),
            "first_drift": first,
            "flips": [pair.site._asdict() for pair in self.flips],
            "counts": self.counts,
            "coverage": asdict(self.coverage),
            "unmatched": {
                "reference": [_unmatched(item) for item in self.reference_only],
                "candidate": [_unmatched(item) for item in self.candidate_only],
                "ignored": [_unmatched(item) for item in self.ignored],
            },
            "graph": self.graph,
            "notes": list(self.notes),
            "problems": list(self.problems),
            "pairs": [_pair(pair) for pair in self.pairs],
        }
        return plain(said)  # type: ignore[no-any-return]


def _unmatched(item: Unmatched) -> dict[str, Any]:
    return {**item.site._asdict(), "reason": item.reason}


def _pair(result: PairResult) -> dict[str, Any]:
    pair = result.pair
    return {
        **pair.site._asdict(),
        "candidate": [record.site._asdict() for record in pair.candidate],
        "matched": pair.matched,
        "reconciled": [
            *(f"reference {step}" for step in pair.reference_steps),
            *(f"candidate {step}" for step in pair.candidate_steps),
            *pair.notes,
        ],
        "verdict": str(result.verdict),
        "reason": result.reason,
        "error": result.error,
        "inherited": result.inherited,
        "limit": result.limit,
        "introduced": result.introduced,
        "introduced_by": result.introduced_by,
        "measurement": None if result.measurement is None else asdict(result.measurement),
    }
