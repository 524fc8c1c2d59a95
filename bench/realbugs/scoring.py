"""What was said of a case against what its change shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from driftbench.asking import Answer

from .case import Case, Truth

CLEAN = frozenset({"same", "noise", "flip"})
ROWS = ("bugs", "right site", "right cause", "wrong cause", "rewrites", "false alarms", "undecided", "failed")


@dataclass(frozen=True)
class Score:
    """One answer. `site` and `cause` are None for rewrites, where only a clean verdict is asked for."""

    case: str
    package: str
    by: str
    verdict: str
    site: bool | None = None
    cause: bool | None = None
    false_alarm: bool = False
    undecided: bool = False
    failed: bool = False
    said_site: str = ""
    said_label: str = ""
    confidence: float = 0.0
    said: str = ""
    true_site: str = ""
    true_change: str = ""
    seconds: float = 0.0

    @property
    def wrong_cause(self) -> bool:
        """A cause was given, and it is not the one."""
        return self.cause is False and self.said_label not in ("", "unknown")


def score(case: Case, by: str, answer: Answer, at_change: bool, seconds: float) -> Score:
    """Judge an answer; `at_change` says that it names a line that the release changed."""
    clean = answer.verdict in CLEAN and answer.exit_code == 0
    drifted = answer.exit_code == 1
    shared = {
        "case": case.name, "package": case.package, "by": by, "verdict": answer.verdict, "seconds": seconds,
        "said": answer.sentence, "said_label": answer.label or "", "undecided": not clean and not drifted,
        "said_site": "" if answer.place is None else str(answer.place),
    }  # fmt: skip
    if case.truth is None:
        return Score(false_alarm=drifted, **shared)
    site = answer.place is not None and any(one.holds(*answer.place) for one in case.truth.where)
    cause = drifted and is_cause(case.truth, answer, at_change)
    where = " or ".join(map(str, case.truth.where))
    return Score(site=site, cause=cause, true_site=where, true_change=case.truth.change, **shared)


def is_cause(truth: Truth, answer: Answer, at_change: bool) -> bool:
    """Whether a cause carries a right label, says the change itself, or was replayed at a line that was changed."""
    if answer.label in truth.labels:
        return True
    if answer.label in (None, "unknown"):
        return False
    return at_change or any(re.search(one, _why(answer)) for one in truth.says)


def _why(answer: Answer) -> str:
    """What the sentence says of the cause, without the site, whose name may hold the same words."""
    return answer.sentence.partition(f"{answer.label}: ")[2] or answer.sentence


def failed(case: Case, by: str, error: Exception, seconds: float) -> Score:
    """A case on which something raised."""
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    asked = None if case.rewrite else False
    return Score(case.name, case.package, by, "failed", asked, asked, failed=True, said=said, seconds=seconds)


def totals(scores: Iterable[Score]) -> dict[str, int]:
    """The rows of the table; bugs and rewrites may be mixed."""
    scores = list(scores)
    bugs = [one for one in scores if one.site is not None]
    counts = (
        len(bugs),
        sum(bool(one.site) for one in bugs),
        sum(bool(one.cause) for one in bugs),
        sum(one.wrong_cause for one in bugs),
        len(scores) - len(bugs),
        sum(one.false_alarm for one in scores),
        sum(one.undecided for one in scores),
        sum(one.failed for one in scores),
    )
    return dict(zip(ROWS, counts, strict=True))


def render(scores: Sequence[Score]) -> str:
    """The table, and every answer that is not right."""
    askers = sorted({one.by for one in scores})
    columns = [totals(one for one in scores if one.by == by) for by in askers]
    lines = [f"{'':<16}" + "".join(f"{by:>10}" for by in askers)]
    lines += [f"{row:<16}" + "".join(f"{column[row]:>10}" for column in columns) for row in ROWS]
    misses = [line for one in scores for line in _miss(one)]
    return "\n".join([*lines, "", *misses])


def _miss(one: Score) -> list[str]:
    if one.failed or one.false_alarm or one.undecided or one.site is False or one.cause is False:
        marks = [mark for mark, wrong in _marks(one) if wrong]
        lines = [f"{one.case} ({one.by}): {', '.join(marks)}: {one.verdict} {one.said_site} {one.said_label}".rstrip()]
        lines += [f"    truth: {one.true_site}: {one.true_change}"] if one.true_change else []
        return [*lines, f"    said:  {one.said}"]
    return []


def _marks(one: Score) -> tuple[tuple[str, bool], ...]:
    return (
        ("failed", one.failed),
        ("false alarm", one.false_alarm),
        ("undecided", one.undecided),
        ("site", one.site is False),
        ("cause", one.cause is False),
    )
