"""What decided a verdict, in English: one sentence for each reason, from the facts that come with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from typing import Any

from ..core.sites import in_words
from ..judge.measure.result import Effect, PairResult, SettingResult, Why

Facts = Mapping[str, Any]
Said = str | Callable[[Facts], str]  # a sentence, with the facts that stand in it; or what makes one of them


def reason_of(result: PairResult) -> str:
    """Why a pair has its verdict."""
    return "" if result.why is None else _told(SAID[result.why], result.facts)


def _told(said: Said, facts: Facts) -> str:
    return said.format_map(facts) if isinstance(said, str) else said(facts)


def _introduced(facts: Facts) -> str:
    how = "replayed in float64, operation: inferred" if facts.get("inferred") else "replayed in float64"
    if facts["error"] == inf:
        return f"not finite where it should be ({how})"
    if facts.get("draws") == 0 and facts["limit"] == 0:
        return f"other numbers than its operation gives ({how})"
    return f"error {facts['error']:.1e}{_where(facts)} ({how}), noise limit {facts['limit']:.1e}"


def _beyond(facts: Facts) -> str:
    if facts.get("factor") is not None and abs(facts["factor"] - 1) > facts.get("open", facts["limit"]):
        return f"the update is {facts['factor']:.4g} times the reference's"
    if facts.get("alone"):
        return f"one number is off by more than any step is long: {facts['alone']:.1e} times the rounding"
    return f"error {facts['error']:.1e}, noise limit {facts['limit']:.1e}{_calibrated(facts)}"


def _calibrated(facts: Facts) -> str:
    noise = facts.get("noise")
    return "" if noise is None else f", as calibrated: the reference's own runs differ by {noise:.1e}"


def _amplified(facts: Facts) -> str:
    said = f"noise of its inputs, amplified: {facts['error']:.1e} is made here"
    came_in, inherited = facts.get("fed"), facts.get("inherited")
    if came_in and inherited:
        said += f", and {came_in:.1e} comes in and is amplified {inherited / came_in:.2g} times (condition number)"
    return said


def _near_tie(facts: Facts) -> str:
    return (
        f"{facts['differing']} of {facts['count']} {facts.get('what', 'integers')} were decided differently, each at a "
        "near-tie; replayed with these decisions, the rest agrees"
    )


def _decided_before(facts: Facts) -> str:
    if "differing" in facts:
        return f"{facts['differing']} of {facts['count']} integers differ, as its own inputs decide: a near-tie"
    return "near-ties were decided differently; replayed with the candidate's decisions, it agrees"


def _follows(facts: Facts) -> str:
    source = facts.get("from")
    return "follows from its inputs" if source is None else f"follows from {in_words(source)}"


def _nan(facts: Facts) -> str:
    some = f"{facts['count']:,} of {facts['of']:,} elements are"
    where = "every element is" if facts["count"] == facts["of"] else some
    return f"{where} NaN on both sides, where nothing can be compared"


def _near_truth(facts: Facts) -> str:
    suspect = "; the reference is further from it than noise explains" if facts["suspect"] else ""
    return f"as close to the truth as the reference ({facts['candidate']:.1e}, {facts['reference']:.1e}){suspect}"


def _far_from_truth(facts: Facts) -> str:
    where = f" in {facts['part']}" if facts["part"] else ""
    return f"{facts['candidate']:.1e} from the truth{where}, the reference {facts['reference']:.1e}"


def _maybe_flipped(facts: Facts) -> str:
    what = f"{facts['differing']} of {facts['count']} integers differ" if "differing" in facts else "it differs"
    return f"{what}, and a near-tie may have been decided differently; record the scores that decide"


def _next_to_noise(facts: Facts) -> str:
    return f"error {facts['error']:.1e}{_where(facts)}, just above the noise limit {facts['limit']:.1e}"


def _untold(facts: Facts) -> str:
    return (
        f"error {facts['error']:.1e}{_where(facts)}, and the trace does not say how it was made; record a program, "
        "or its operation, inputs and weights"
    )


def _where(facts: Facts) -> str:
    """In which part, unless it is all of it."""
    return "" if facts.get("where") in (None, "", "the whole") else f" in {facts['where']}"


def _stated(facts: Facts) -> str:
    values = [_value(facts[side]) for side in ("candidate", "reference")]
    return f"the candidate states {facts['key']} {values[0]} instead of {values[1]}, "


def _value(said: Any) -> str:
    return f"{said:g}" if isinstance(said, float) else str(said)


def _by(facts: Facts) -> str:
    error = facts.get("error")
    if error is None:
        return ""
    return f" by {error:.1e}" if isfinite(error) else ": those of the reference are all zero"


def _part_name(facts: Facts) -> str:
    return facts["part"] or "the model"


SAID: Mapping[Why, Said] = {
    Why.BIT_EQUAL: "bit-equal",
    Why.EMPTY: "no elements",
    Why.ABSENT_ON_BOTH: "absent on both sides",
    Why.ROUNDED_EQUAL: "equal after rounding",
    Why.ONE_ROUNDING: "within one rounding",
    Why.LEFT_BY_STEP: "as the step before left it",
    Why.CLEAR: "within rounding",
    Why.WITHIN_DRAWS: "within the noise of its operation",
    Why.WITHIN_LIMIT: lambda facts: f"within noise{_calibrated(facts)}",
    Why.WITHIN_TOLERANCE: "within the tolerance of {limit:g} set in {source}",
    Why.NEAR_TRUTH: _near_truth,
    Why.NO_JUMP: "largest error {largest:.1e}, relative {error:.1e}: no jump",
    Why.AMPLIFIED: _amplified,
    Why.SAME_IN_FLOAT64: "just above noise as both ran; in float64 both compute the same",
    Why.GAUGE: lambda facts: (
        f"stored differently: {_part_name(facts)} computes the same function, on these and on random inputs"
    ),
    Why.SAME_FUNCTION: lambda facts: (
        f"computed differently: {_part_name(facts)} is the same function, on these and on random inputs"
    ),
    Why.FILL: "masked with {candidate:g} instead of {reference:g}; what reads it gives the same",
    Why.DECLARED_PRECISION: "rounded as its own calls do, in the precision that the candidate declares",
    Why.NEAR_TIE: _near_tie,
    Why.DECIDED_BEFORE: _decided_before,
    Why.OTHER_INPUT: "the two sides received different inputs",
    Why.OTHER_WEIGHT: lambda facts: "the weights differ" + _by(facts),
    Why.UPDATES_BETWEEN: lambda facts: "the weights differ" + _by(facts),
    Why.NON_FINITE: (
        "the reference has {nan_reference} NaN and {inf_reference} Inf, the candidate {nan_candidate} NaN and "
        "{inf_candidate} Inf, not at the same places"
    ),
    Why.OTHER_INTEGERS: "{differing} of {count} integers differ",
    Why.INTRODUCED: _introduced,
    Why.BEYOND_LIMIT: _beyond,
    Why.BEYOND_TOLERANCE: "error {error:.1e}, beyond {limit:g} set in {source}",
    Why.FAR_FROM_TRUTH: _far_from_truth,
    Why.JUMP: "largest error {largest:.1e}, relative {error:.1e}, floor {floor:.1e}",
    Why.NO_GRADIENT: "the candidate has none: {said}",
    Why.EXTRA_GRADIENT: "the reference has none: {said}",
    Why.SETTING: lambda facts: f"{_stated(facts)}which changes the function, though too little to be seen here",
    Why.UNSTABLE: "two runs of the candidate on the same inputs with the same seed differ by {error:.1e}",
    Why.SHORTER_GRID: "its numbers are rounded to {name}, though declared {declared}",
    Why.SHORTER_CALLS: "its own calls are made in {dtype}, and round by {error:.1e}",
    Why.FOLLOWS_INPUTS: _follows,
    Why.FOLLOWS_FORWARD: lambda facts: f"follows from the drift of {in_words(facts['from'])}",
    Why.READ_INSIDE: "it is read by {from.name}",
    Why.DOUBT: "in doubt: one pass over its bytes cannot tell",
    Why.NEXT_TO_NOISE: _next_to_noise,
    Why.MORE_DIGITS: lambda facts: f"{_next_to_noise(facts)}, unless the candidate had more digits than it recorded",
    Why.OTHER_DRAWS: "each side drew other random numbers here; draw the same on both, in the same order and dtype",
    Why.CONTROL_DIFFERS: "control differs here: {said}",
    Why.HIDDEN_UPDATE: "the update is lost in the rounding of the weights it is added to",
    Why.INVISIBLE: "errors up to {limit:.1g} of the tensor would be invisible here",
    Why.PART_ALONE: "error {error:.1e} in {where}, noise limit {limit:.1e}, too small beside the rest to tell",
    Why.UNTOLD: _untold,
    Why.UNTESTED: lambda facts: (
        f"the weights differ{_by(facts)}, the model's outputs do not; whether the weights make up for one another "
        "takes a replay: pip install 'firstdrift[torch]'"
    ),
    Why.MAYBE_FLIPPED: _maybe_flipped,
    Why.SOURCELESS: lambda facts: f"{_follows(facts)}, and that does not drift",
    Why.UNKNOWN_SETTING: lambda facts: f"{_stated(facts)}and no program says what that changes",
    Why.UNEXERCISED: (
        "the same on this batch, and not on others: the reference computes {reference}, the candidate {candidate}"
    ),
    Why.PROBLEM: "{problem}",
    Why.NAN_ON_BOTH: _nan,
}

EFFECTS: Mapping[Effect, str] = {
    Effect.CHANGES: "changes what is computed",
    Effect.CONTRADICTED: "but its numbers are those of the reference's",
    Effect.UNREAD: "changes nothing that is computed here",
    Effect.MEANT: "meant, as the map says",
    Effect.UNKNOWN: "and no program says what that changes",
}


def setting_in_words(alike: Sequence[SettingResult]) -> str:
    """A setting that the two sides state differently, at one place or several."""
    one, more = alike[0], f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    where, values = f"{one.where or 'the model'}{more}", f"{_value(one.candidate)} instead of {_value(one.reference)}"
    return f"{one.key} of {where}: {values}, {EFFECTS[one.effect]}"


def proof_of(result: PairResult) -> str | None:
    """The proof of an exception: what was replayed or transformed, what was left, on how many elements; None where a
    pair rests on none."""
    said = None if result.why is None else PROOFS.get(result.why)
    if said is None:
        return None
    elements = "1 element" if result.pair.count == 1 else f"{result.pair.count:,} elements"
    return f"{_told(said, {**result.facts, 'remainder': _remainder(result.facts)})}, on {elements}"


def _remainder(facts: Facts) -> str:
    if facts.get("error") is None or facts.get("limit") is None:
        return "nothing was left"
    return f"error {facts['error']:.1e} was left, noise limit {facts['limit']:.1e}"


def _equal_function(facts: Facts) -> str:
    if "left" not in facts:
        return f"replayed with {_part_name(facts)} as one operation; what was left is noise"
    runs = f"{_part_name(facts)} ran in float64 on this and {facts['trials']} random inputs, with what either side has"
    return f"{runs}; {facts['left']:.2g} times the rounding of the weights was left"


PROOFS: Mapping[Why, Said] = {
    Why.GAUGE: _equal_function,
    Why.SAME_FUNCTION: _equal_function,
    Why.FILL: "what reads it was replayed with either fill and gave the same bits; {remainder} beside it",
    Why.DECLARED_PRECISION: "the candidate's own calls ran {draws} times with other roundings; {remainder}",
    Why.NEAR_TIE: "{runs} runs decided for themselves, one as the candidate; {remainder}",
    Why.DECIDED_BEFORE: "replayed from the candidate's own decisions; {remainder}",
}
