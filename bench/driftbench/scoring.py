"""What was said against what is true."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from .asking import Answer
from .case import Case

CLEAN = frozenset({"same", "noise", "flip"})
UNDECIDED = frozenset({"inconclusive", "not comparable", "missing"})
PARAMETER_TOLERANCE = 0.02
REFERENCE_OFF = "reference-suspect"
BENIGN_LABELS = frozenset({"none", "float-noise", "ill-conditioned", "decision-flip", "layout-equivalent"})


@dataclass(frozen=True)
class Score:
    """One answer to one case. `outcome` is right, wrong site, missed, undecided, clean, false alarm or failed."""

    case: str
    family: str
    precision: str
    scope: str
    benign: bool
    by: str  # check, traces, or a baseline
    outcome: str
    label: bool | None = None  # None where it is not asked for
    parameters: bool | None = None
    said: str = ""
    expected: str = ""
    said_label: str = ""
    expected_labels: str = ""
    seconds: float = 0.0


def score(case: Case, by: str, answer: Answer, seconds: float = 0.0) -> Score:
    """Judge an answer."""
    said = (
        answer.verdict
        if answer.place is None
        else f"{answer.verdict} {answer.place} step {answer.step} call {answer.call}"
    )
    common: dict[str, Any] = {
        "case": case.name, "family": case.family, "precision": case.precision, "scope": case.scope,
        "benign": case.benign, "by": by, "said": said, "said_label": answer.label or "", "seconds": seconds,
    }  # fmt: skip
    truth = case.truth
    if truth is None:
        clean = answer.verdict in CLEAN and answer.exit_code == 0
        outcome = "clean" if clean else _undecided(answer) or "false alarm"
        return Score(outcome=outcome, expected="same, noise or flip", **common)
    expected = " or ".join(map(str, truth.places)) + f" step {truth.step} call {truth.call}"
    label = answer.label in truth.labels
    return Score(
        outcome=_bug_outcome(case, answer),
        label=label,
        parameters=label and _has(answer.parameters or {}, truth.parameters.values()) if truth.parameters else None,
        expected=expected,
        expected_labels="/".join(truth.labels),
        **common,
    )


def failed(case: Case, by: str, error: Exception) -> Score:
    """A case on which something raised."""
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    return Score(case.name, case.family, case.precision, case.scope, case.benign, by, "failed", said=said)


def _bug_outcome(case: Case, answer: Answer) -> str:
    assert case.truth is not None
    if answer.verdict in CLEAN:  # a candidate need not fail for what is wrong with its reference, if that is said
        return "right" if answer.label == REFERENCE_OFF and REFERENCE_OFF in case.truth.labels else "missed"
    if answer.place is None:
        return "undecided"
    right = answer.place in case.truth.places and (answer.step, answer.call) == (case.truth.step, case.truth.call)
    return "right" if right else "wrong site"


def _undecided(answer: Answer) -> str | None:
    return "undecided" if answer.verdict in UNDECIDED or answer.verdict in CLEAN else None


def _has(found: Mapping[str, Any], wanted: Iterable[float]) -> bool:
    """Whether every number is there, under whatever name."""
    numbers = list(_numbers(found))
    return all(any(math.isclose(n, want, rel_tol=PARAMETER_TOLERANCE) for n in numbers) for want in wanted)


def _numbers(value: Any) -> Iterator[float]:
    """Every number in a value, however deep."""
    if isinstance(value, Mapping):
        value = value.values()
    if isinstance(value, Real) and not isinstance(value, bool):
        yield float(value)
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for item in value:
            yield from _numbers(item)


@dataclass(frozen=True)
class Row:
    """Counts over some scores."""

    cases: int
    sites: int
    undecided: int
    labels: int
    parameters: int
    asked_parameters: int
    false_alarms: int
    clean: int


def count(scores: Iterable[Score]) -> Row:
    """Add up; bugs and benign cases may be mixed."""
    scores = list(scores)
    bugs = [one for one in scores if not one.benign]
    return Row(
        cases=len(scores),
        sites=sum(one.outcome == "right" for one in bugs),
        undecided=sum(one.outcome == "undecided" for one in scores),
        labels=sum(bool(one.label) for one in bugs),
        parameters=sum(bool(one.parameters) for one in bugs),
        asked_parameters=sum(one.parameters is not None for one in bugs),
        false_alarms=sum(one.outcome in ("false alarm", "failed") for one in scores if one.benign),
        clean=sum(one.outcome == "clean" for one in scores),
    )
