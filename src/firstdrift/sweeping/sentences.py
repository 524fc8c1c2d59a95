"""What a sweep says in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ..judge.measure.result import Verdict
from .case_rows import COULD_NOT_TELL, Growth, Place
from .cases import name_of
from .growth import COMPOUNDS, compounds, factor, jumps, ratio
from .summaries import DEPENDENT, ROBUST, Repeated, Share

if TYPE_CHECKING:
    from .answer import SweepResult


def sentence_of(result: SweepResult) -> str:
    """The verdict and what it rests on."""
    return f"{result.verdict.value}: {_said(result)}{_but(result)}"


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
            turned = f"but for near-ties, in {result.flips}: {_pattern(result.flips)}"
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
        return f"{where}: {_pattern(first.share)}{_cause(first)}"
    rest = f"{len(others)} more place{'s' if len(others) > 1 else ''}"
    return f"{result.drifts} cases drift: {_pattern(result.drifts)}; most often {where}{_cause(first)}; and at {rest}"


def _pattern(share: Share) -> str:
    pattern = share.pattern
    if pattern in (ROBUST, DEPENDENT):
        return pattern
    return f"in every case, but {share.of} {'is' if share.of == 1 else 'are'} too few to call it robust"


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


def describe_growth(curves: Sequence[Growth]) -> dict[str, Any] | None:
    """How differences develop over steps, over all cases that have several."""
    if not curves:
        return None
    factors = [value for value in map(factor, curves) if value is not None]
    ratios = [value for value in map(ratio, curves) if value is not None]
    found = [one for one in map(compounds, curves) if one is not None]
    jumped = Counter(step for curve in curves for step in jumps(curve))
    said = {
        "of": curves[0].of,
        "cases": len(curves),
        "steps": max(len(curve.steps) for curve in curves),
        "factor": median(factors) if factors else None,
        "jumps": {str(step): count for step, count in sorted(jumped.items())},
        "ratio": median(ratios) if ratios else None,
        "compounds": Share(sum(found), len(found)).to_json() if found else None,
    }
    return {**said, "sentence": _growing(said, found)}


def _growing(said: dict[str, Any], found: Sequence[bool]) -> str:
    """What the curves say. Only a float64 run tells what is the network's own growth from what a port adds."""
    steps = f"after {said['steps']} steps"
    grows = "" if said["factor"] is None else f"the sides part by a factor of {said['factor']:.2f} a step"
    if found:
        far = f"{steps} the candidate is {said['ratio']:.1f} times as far from float64 as the reference is"
        share = Share(sum(found), len(found))
        if not share.count:
            return f"nothing compounds that the reference does not: {far}"
        beyond = f"{far}, and more than {COMPOUNDS:g} times in {share}"
        if share.pattern == DEPENDENT:
            return f"{beyond}: batch-dependent, as a near-tie that one side decides otherwise would make it"
        return f"{'it compounds' if share.pattern == ROBUST else 'it may compound'}: {beyond}: {_pattern(share)}"
    jumped = f"; it jumps at step {', '.join(list(said['jumps'])[:5])}" if said["jumps"] else ""
    known = "whether that is the network's own, a float64 run would tell"
    return f"{grows or f'{steps} there is no growth to be seen'}{jumped}; {known}"
