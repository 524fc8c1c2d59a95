"""One answer for all cases: verdict, exit code, what repeats, what depends on the batch, and what was not told."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NoReturn

from ..core.strict_json import plain
from ..judge.measure.result import Verdict
from .case_rows import COULD_NOT_TELL, INTERNAL_ERROR, Place, Row
from .cases import Case, key_of, name_of
from .growth import describe_growth
from .summaries import ParameterSummary, Repeated, Share, SiteSummary, parameters, repeated, summarise

SCHEMA = "firstdrift-sweep-v1"


@dataclass(frozen=True)
class SweepResult:
    """What a sweep found. `exit_code` is what CI needs; a result is not a truth value.

    `rows` are the cases that are done, in their order, and `left` those that are not. `sites`, `parameters` and
    `findings` are what the rows say together.
    """

    cases: tuple[Case, ...]
    rows: tuple[Row, ...]
    directory: str | None = None
    reused: int = 0  # rows of an earlier run
    notes: tuple[str, ...] = ()

    def __bool__(self) -> NoReturn:
        raise TypeError("a result is not a truth value; look at result.verdict or result.exit_code")

    @cached_property
    def left(self) -> tuple[Case, ...]:
        """Cases that were not run, because the sweep was interrupted."""
        done = {key_of(row.case) for row in self.rows}
        return tuple(case for case in self.cases if key_of(case) not in done)

    @cached_property
    def failed(self) -> tuple[Row, ...]:
        """Cases of which a side, or the comparison, did not come to an end."""
        return tuple(row for row in self.rows if row.failed)

    @cached_property
    def compared(self) -> tuple[Row, ...]:
        """The other ones."""
        return tuple(row for row in self.rows if not row.failed)

    @cached_property
    def sites(self) -> list[SiteSummary]:
        """Every site over all cases, by phase and in causal order."""
        return summarise(self.compared)

    @cached_property
    def parameters(self) -> list[ParameterSummary]:
        """The gradients of every parameter, the worst first."""
        return self.parameters_by("error")

    def parameters_by(self, order: str) -> list[ParameterSummary]:
        """The same, the largest mean `error` first, or the largest mean of the largest difference (`abs`)."""
        return parameters(self.sites, order)

    @cached_property
    def findings(self) -> list[Repeated]:
        """The first drifts, by place."""
        return repeated(self.rows)

    @cached_property
    def growth(self) -> dict[str, Any] | None:
        """How the difference develops over steps, in the cases that have several."""
        return describe_growth([row.growth for row in self.compared if row.growth is not None])

    @cached_property
    def overlap(self) -> str | None:
        """A sentence where cases were fed the same samples, for then they are no independent evidence."""
        fed = [set(row.fed) for row in self.compared if row.fed]
        if len(fed) < 2:
            return None
        if all(one == fed[0] for one in fed):
            return "every case was fed the same input, so that they say nothing of other inputs"
        shared = sum(count > 1 for count in Counter(sample for one in fed for sample in one).values())
        if not shared:
            return None
        samples = "1 sample is" if shared == 1 else f"{shared} samples are"
        return (
            f"{samples} in more than one case, which makes the intervals too narrow; choose batches that do not overlap"
        )

    @property
    def drifts(self) -> Share:
        """How many cases drift."""
        return Share(sum(row.exit_code == 1 for row in self.compared), len(self.compared))

    @property
    def flips(self) -> Share:
        """How many cases have decisions that a near-tie turned."""
        return Share(sum(row.counts.get("flip", 0) > 0 for row in self.compared), len(self.compared))

    @property
    def exit_code(self) -> int:
        """1 wherever one case drifts; else 2 where one could not be told, or was not run; else 0."""
        codes = {row.exit_code for row in self.rows} | ({COULD_NOT_TELL} if self.left or not self.rows else set())
        return next((code for code in (1, INTERNAL_ERROR, COULD_NOT_TELL) if code in codes), 0)

    @property
    def verdict(self) -> Verdict:
        """The gravest of the cases."""
        found = {row.verdict for row in self.compared}
        if "drift" in found:
            return Verdict.DRIFT
        if not found or "not comparable" in found:
            return Verdict.NOT_COMPARABLE
        if "inconclusive" in found or self.failed or self.left:
            return Verdict.INCONCLUSIVE
        return next(one for one in (Verdict.FLIP, Verdict.NOISE, Verdict.SAME) if str(one) in found)

    @property
    def sentence(self) -> str:
        """The verdict and what it rests on."""
        return f"{self.verdict.value}: {_said(self)}{_but(self)}"

    def to_json(self, sort: str = "error") -> dict[str, Any]:
        """The result in the schema `firstdrift-sweep-v1`; `sort` is the order of `parameters`."""
        said = {
            "schema": SCHEMA,
            "verdict": str(self.verdict),
            "sentence": self.sentence,
            "exit_code": self.exit_code,
            "counts": {
                "cases": len(self.cases), "done": len(self.rows), "reused": self.reused, "failed": len(self.failed),
                "left": len(self.left), "verdicts": dict(Counter(row.verdict for row in self.rows)),
            },
            "drifts": self.drifts.to_json(),
            "flips": self.flips.to_json(),
            "findings": [_finding(finding) for finding in self.findings],
            "cases": [_case(row) for row in self.rows],
            "left": list(self.left),
            "sites": [_site(site) for site in self.sites],
            "parameters": [_parameter(summary) for summary in self.parameters_by(sort)],
            "growth": self.growth,
            "directory": self.directory,
            "notes": [*self.notes, *([self.overlap] if self.overlap else [])],
        }  # fmt: skip
        return plain(said)  # type: ignore[no-any-return]


def _finding(one: Repeated) -> dict[str, Any]:
    phase, name, port = one.place
    return {
        "phase": phase, "name": name, "port": port, "introduced_by": one.introduced_by, "share": one.share.to_json(),
        "cases": list(one.cases), "causes": one.causes, "cause": one.cause, "why": one.why,
        "parameters": one.parameters,
    }  # fmt: skip


def _case(row: Row) -> dict[str, Any]:
    """A case without its sites, which the results file has."""
    said = asdict(row)
    for key in ("sites", "stamp", "fed"):
        said.pop(key)
    return said


def _site(summary: SiteSummary) -> dict[str, Any]:
    said = asdict(summary)
    return {**said, "drifts": summary.drifts.to_json(), "flips": summary.flips.to_json(), "pattern": summary.pattern}


def _parameter(summary: ParameterSummary) -> dict[str, Any]:
    keys = ("error_mean", "error_max", "abs_mean", "abs_max", "rel_mean", "cases")
    sides = {
        name: side and {key: getattr(side, key) for key in keys}
        for name, side in (("grad", summary.raw), ("grad_scaled", summary.scaled))
    }
    return {"name": summary.name, "port": summary.port, **sides, "pattern": summary.pattern}


# The sentence


def shown(place: Place) -> str:
    """A place for people: phase, name, and the port where it is not the usual one."""
    phase, name, port = place
    return f"{phase} {name or 'the model'}" + ("" if port in ("out", "weight") else f":{port}")


def _said(result: SweepResult) -> str:
    rows = result.compared
    cases = "the one case is" if len(rows) == 1 else f"all {len(rows)} cases are"
    match result.verdict:
        case Verdict.DRIFT:
            return _drift(result)
        case Verdict.FLIP:
            turned = f"but for near-ties, in {result.flips}: {result.flips.sentence}"
            return f"{cases} the same up to float noise {turned}{_ruled_out(result)}"
        case Verdict.NOISE:
            return f"{cases} the same up to float noise{_ruled_out(result)}"
        case Verdict.SAME:
            return f"{cases} bit-equal{_ruled_out(result)}"
    if not rows:
        return "nothing was compared"
    doubtful = [row for row in rows if row.verdict in ("inconclusive", "not comparable")]
    if not doubtful:
        return f"{len(rows)} of {len(result.cases)} cases were compared, and none of them drifts"
    first = doubtful[0]
    return f"{len(doubtful)} of {len(rows)} cases could not be judged, first {name_of(first.case)}: {first.sentence}"


def _ruled_out(result: SweepResult) -> str:
    """How often there could be a drift that these cases happen not to have."""
    most = 100 * result.drifts.interval[1]
    return f"; a drift in more than {most:.0f} % of such cases is ruled out" if result.drifts.of > 1 else ""


def _drift(result: SweepResult) -> str:
    first, *others = result.findings
    where = f"the first drift is {shown(first.place)}, introduced by {first.introduced_by}, in {first.share}"
    if not others:
        return f"{where}: {first.share.sentence}{_cause(first)}"
    rest = f"{len(others)} more place{'s' if len(others) > 1 else ''}"
    return f"{result.drifts} cases drift: {result.drifts.sentence}; most often {where}{_cause(first)}; and at {rest}"


def _cause(first: Repeated) -> str:
    if first.cause is not None:
        return f"; {first.cause} in every one of them: {first.why}"
    named = [f"{label} in {count}" for label, count in first.causes.items() if label != "unknown"]
    return f"; causes differ: {', '.join(named)} of {first.share.count}" if named else ""


def _but(result: SweepResult) -> str:
    """What keeps the sentence from being all there is to say."""
    said = ""
    if result.failed:
        first = result.failed[0]
        said += (
            f"; {len(result.failed)} of {len(result.cases)} cases failed, first {name_of(first.case)}: {first.sentence}"
        )
    problems = [row for row in result.compared if row.problems and row.exit_code == COULD_NOT_TELL]
    if problems and result.exit_code == COULD_NOT_TELL:
        first = problems[0]
        said += f", but in {len(problems)} of them {first.problems[0]}"
    if result.left:
        said += f"; {len(result.left)} of {len(result.cases)} cases were not run"
    return said
