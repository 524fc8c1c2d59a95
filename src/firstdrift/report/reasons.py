"""What decided a verdict, in English: one sentence for each reason, from the facts that come with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

from ..core.sites import Site, in_words
from ..judge.measure.result import Effect, PairResult, SettingResult, Why

Facts = Mapping[str, Any]


def reason_of(result: PairResult) -> str:
    """Why a pair has its verdict."""
    return "" if result.why is None else SAID[result.why](result.facts)


def _introduced(facts: Facts) -> str:
    how = "replayed in float64, operation: inferred" if facts.get("inferred") else "replayed in float64"
    if facts["error"] == float("inf"):
        return f"not finite where it should be ({how})"
    if facts.get("draws") == 0 and facts["limit"] == 0:
        return f"other numbers than its operation gives ({how})"
    return f"error {facts['error']:.1e}{_where(facts)} ({how}), noise limit {facts['limit']:.1e}"


def _beyond(facts: Facts) -> str:
    if facts.get("factor") is not None and abs(facts["factor"] - 1) > facts.get("open", facts["limit"]):
        return f"the update is {facts['factor']:.4g} times the reference's"
    if facts.get("alone"):
        return f"one number is off by more than any step is long: {facts['alone']:.1e} times the rounding"
    noise = facts.get("noise")
    tail = "" if noise is None else f", as calibrated: the reference's own runs differ by {noise:.1e}"
    return f"error {facts['error']:.1e}, noise limit {facts['limit']:.1e}{tail}"


def _within_limit(facts: Facts) -> str:
    noise = facts.get("noise")
    if noise is None:
        return "within noise"
    return f"within noise, as calibrated: the reference's own runs differ by {noise:.1e}"


def _amplified(facts: Facts) -> str:
    said = f"noise of its inputs, amplified: {facts['error']:.1e} is made here"
    fed, inherited = facts.get("fed"), facts.get("inherited")
    if fed and inherited:
        said += f", and {fed:.1e} comes in and is amplified {inherited / fed:.2g} times (condition number)"
    return said


def _near_tie(facts: Facts) -> str:
    what = facts.get("what", "integers")
    return (
        f"{facts['differing']} of {facts['count']} {what} were decided differently, each at a near-tie; replayed "
        "with these decisions, the rest agrees"
    )


def _decided_before(facts: Facts) -> str:
    if "differing" in facts:
        return f"{facts['differing']} of {facts['count']} integers differ, as its own inputs decide: a near-tie"
    return "near-ties were decided differently; replayed with the candidate's decisions, it agrees"


def _follows(facts: Facts) -> str:
    source: Site | None = facts.get("from")
    return "follows from its inputs" if source is None else f"follows from {in_words(source)}"


def _not_finite(facts: Facts) -> str:
    reference = f"{facts['nan_reference']} NaN and {facts['inf_reference']} Inf"
    candidate = f"{facts['nan_candidate']} NaN and {facts['inf_candidate']} Inf"
    return f"the reference has {reference}, the candidate {candidate}, not at the same places"


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


def _jump(facts: Facts) -> str:
    return f"largest error {facts['largest']:.1e}, relative {facts['error']:.1e}, floor {facts['floor']:.1e}"


def _maybe_flipped(facts: Facts) -> str:
    what = f"{facts['differing']} of {facts['count']} integers differ" if "differing" in facts else "it differs"
    return f"{what}, and a near-tie may have been decided differently; record the scores that decide"


def _precision(facts: Facts) -> str:
    return f"its numbers are rounded to {facts['name']}, though declared {facts['declared']}"


def _part(facts: Facts) -> str:
    return (
        f"error {facts['error']:.1e} in {facts['where']}, noise limit {facts['limit']:.1e}, too small beside the rest "
        "to tell"
    )


def _next_to_noise(facts: Facts) -> str:
    return f"error {facts['error']:.1e}{_where(facts)}, just above the noise limit {facts['limit']:.1e}"


def _setting(facts: Facts) -> str:
    return (
        f"the candidate states {facts['key']} {_value(facts['candidate'])} instead of {_value(facts['reference'])}, "
        "which changes the function, though too little to be seen here"
    )


def _unknown_setting(facts: Facts) -> str:
    return (
        f"the candidate states {facts['key']} {_value(facts['candidate'])} instead of {_value(facts['reference'])}, "
        "and no program says what that changes"
    )


def _value(said: Any) -> str:
    return f"{said:g}" if isinstance(said, float) else str(said)


EFFECTS: Mapping[Effect, str] = {
    Effect.CHANGES: "changes what is computed",
    Effect.CONTRADICTED: "but its numbers are those of the reference's",
    Effect.UNREAD: "changes nothing that is computed here",
    Effect.MEANT: "meant, as the map says",
    Effect.UNKNOWN: "and no program says what that changes",
}


def setting_in_words(alike: Sequence[SettingResult]) -> str:
    """A setting that the two sides state differently, at one place or several."""
    one = alike[0]
    places = [each.where for each in alike]
    where = (
        f"{one.where or 'the model'}" if len(places) == 1 else f"{places[0] or 'the model'} and {len(places) - 1} more"
    )
    return f"{one.key} of {where}: {_value(one.candidate)} instead of {_value(one.reference)}, {EFFECTS[one.effect]}"


def proof_of(result: PairResult) -> str | None:
    """The proof of an exception: what was replayed or transformed, what was left, on how many elements; None where a
    pair rests on none."""
    said = None if result.why is None else PROOFS.get(result.why)
    if said is None:
        return None
    elements = "1 element" if result.pair.count == 1 else f"{result.pair.count:,} elements"
    return f"{said(result.facts)}, on {elements}"


def _left(facts: Facts) -> str:
    if facts.get("error") is None or facts.get("limit") is None:
        return "nothing was left"
    return f"error {facts['error']:.1e} was left, noise limit {facts['limit']:.1e}"


def _equal_function(facts: Facts) -> str:
    if "left" not in facts:
        return f"replayed with {_part_name(facts)} as one operation; what was left is noise"
    runs = f"{_part_name(facts)} ran in float64 on this and {facts['trials']} random inputs, with what either side has"
    return f"{runs}; {facts['left']:.2g} times the rounding of the weights was left"


PROOFS: Mapping[Why, Callable[[Facts], str]] = {
    Why.GAUGE: _equal_function,
    Why.SAME_FUNCTION: _equal_function,
    Why.FILL: lambda facts: (
        f"what reads it was replayed with either fill and gave the same bits; {_left(facts)} beside it"
    ),
    Why.DECLARED_PRECISION: lambda facts: (
        f"the candidate's own calls ran {facts['draws']} times with other roundings; {_left(facts)}"
    ),
    Why.NEAR_TIE: lambda facts: f"{facts['runs']} runs decided for themselves, one as the candidate; {_left(facts)}",
    Why.DECIDED_BEFORE: lambda facts: f"replayed from the candidate's own decisions; {_left(facts)}",
}


def _part_name(facts: Facts) -> str:
    return facts["part"] or "the model"


def _fill(facts: Facts) -> str:
    return f"masked with {facts['candidate']:g} instead of {facts['reference']:g}; what reads it gives the same"


def _beyond_tolerance(facts: Facts) -> str:
    return f"error {facts['error']:.1e}, beyond {facts['limit']:g} set in {facts['source']}"


def _unstable(facts: Facts) -> str:
    return f"two runs of the candidate on the same inputs with the same seed differ by {facts['error']:.1e}"


def _untold(facts: Facts) -> str:
    return (
        f"error {facts['error']:.1e}{_where(facts)}, and the trace does not say how it was made; record a program, "
        "or its operation, inputs and weights"
    )


def _where(facts: Facts) -> str:
    """In which part, unless it is all of it."""
    return "" if facts.get("where") in (None, "", "the whole") else f" in {facts['where']}"


def _text(said: str) -> Callable[[Facts], str]:
    return lambda facts: said


SAID: Mapping[Why, Callable[[Facts], str]] = {
    Why.BIT_EQUAL: _text("bit-equal"),
    Why.EMPTY: _text("no elements"),
    Why.ABSENT_ON_BOTH: _text("absent on both sides"),
    Why.ROUNDED_EQUAL: _text("equal after rounding"),
    Why.ONE_ROUNDING: _text("within one rounding"),
    Why.LEFT_BY_STEP: _text("as the step before left it"),
    Why.CLEAR: _text("within rounding"),
    Why.WITHIN_DRAWS: _text("within the noise of its operation"),
    Why.WITHIN_LIMIT: _within_limit,
    Why.WITHIN_TOLERANCE: lambda facts: f"within the tolerance of {facts['limit']:g} set in {facts['source']}",
    Why.NEAR_TRUTH: _near_truth,
    Why.NO_JUMP: lambda facts: f"largest error {facts['largest']:.1e}, relative {facts['error']:.1e}: no jump",
    Why.AMPLIFIED: _amplified,
    Why.SAME_IN_FLOAT64: _text("just above noise as both ran; in float64 both compute the same"),
    Why.GAUGE: lambda facts: (
        f"stored differently: {_part_name(facts)} computes the same function, on these and on random inputs"
    ),
    Why.SAME_FUNCTION: lambda facts: (
        f"computed differently: {_part_name(facts)} is the same function, on these and on random inputs"
    ),
    Why.FILL: _fill,
    Why.DECLARED_PRECISION: _text("rounded as its own calls do, in the precision that the candidate declares"),
    Why.NEAR_TIE: _near_tie,
    Why.DECIDED_BEFORE: _decided_before,
    Why.OTHER_INPUT: _text("the two sides received different inputs"),
    Why.OTHER_WEIGHT: lambda facts: "the weights differ" + _by(facts),
    Why.UPDATES_BETWEEN: lambda facts: "the weights differ" + _by(facts),
    Why.NON_FINITE: _not_finite,
    Why.OTHER_INTEGERS: lambda facts: f"{facts['differing']} of {facts['count']} integers differ",
    Why.INTRODUCED: _introduced,
    Why.BEYOND_LIMIT: _beyond,
    Why.BEYOND_TOLERANCE: _beyond_tolerance,
    Why.FAR_FROM_TRUTH: _far_from_truth,
    Why.JUMP: _jump,
    Why.NO_GRADIENT: lambda facts: f"the candidate has none: {facts['said']}",
    Why.EXTRA_GRADIENT: lambda facts: f"the reference has none: {facts['said']}",
    Why.SETTING: _setting,
    Why.UNSTABLE: _unstable,
    Why.SHORTER_GRID: _precision,
    Why.SHORTER_CALLS: lambda facts: f"its own calls are made in {facts['dtype']}, and round by {facts['error']:.1e}",
    Why.FOLLOWS_INPUTS: _follows,
    Why.FOLLOWS_FORWARD: lambda facts: f"follows from the drift of {in_words(facts['from'])}",
    Why.READ_INSIDE: lambda facts: f"it is read by {facts['from'].name}",
    Why.DOUBT: _text("in doubt: one pass over its bytes cannot tell"),
    Why.NEXT_TO_NOISE: _next_to_noise,
    Why.MORE_DIGITS: lambda facts: f"{_next_to_noise(facts)}, unless the candidate had more digits than it recorded",
    Why.OTHER_DRAWS: _text(
        "each side drew other random numbers here; draw the same on both, in the same order and dtype"
    ),
    Why.CONTROL_DIFFERS: lambda facts: f"control differs here: {facts['said']}",
    Why.HIDDEN_UPDATE: _text("the update is lost in the rounding of the weights it is added to"),
    Why.INVISIBLE: lambda facts: f"errors up to {facts['limit']:.1g} of the tensor would be invisible here",
    Why.PART_ALONE: _part,
    Why.UNTOLD: _untold,
    Why.UNTESTED: lambda facts: (
        f"the weights differ{_by(facts)}, the model's outputs do not; whether the weights make up for one another "
        "takes a replay: pip install 'firstdrift[torch]'"
    ),
    Why.MAYBE_FLIPPED: _maybe_flipped,
    Why.SOURCELESS: lambda facts: f"{_follows(facts)}, and that does not drift",
    Why.UNKNOWN_SETTING: _unknown_setting,
    Why.UNEXERCISED: lambda facts: (
        f"the same on this batch, and not on others: the reference computes {facts['reference']}, the candidate "
        f"{facts['candidate']}"
    ),
    Why.PROBLEM: lambda facts: str(facts["problem"]),
    Why.NAN_ON_BOTH: _nan,
}


def _by(facts: Facts) -> str:
    error = facts.get("error")
    if error is None:
        return ""
    return f" by {error:.1e}" if isfinite(error) else ": those of the reference are all zero"
