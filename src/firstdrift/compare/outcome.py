"""From verdicts of pairs to the result of a run: the first drift, its cause, sentences, coverage, exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from ..core.dtypes import roundoff
from ..core.sites import BACKWARD_PHASES, PARAMETER_PHASES, Site, in_words
from ..core.traces import Trace
from ..judge.graph import Graph
from ..judge.measure.measuring import Measured
from ..judge.measure.result import (
    CLEAN,
    DRIFTS,
    Cause,
    Coverage,
    Effect,
    Finding,
    FirstDrift,
    PairResult,
    Proves,
    Result,
    SettingResult,
    Verdict,
    Why,
)
from ..pair.pairs import Alignment, Pair, Unmatched

# What is a drift whatever came before it.
_SURE = frozenset({
    Why.OTHER_INPUT, Why.OTHER_WEIGHT, Why.UPDATES_BETWEEN, Why.SETTING, Why.UNSTABLE, Why.NO_GRADIENT,
    Why.EXTRA_GRADIENT, Why.SHORTER_CALLS,
})  # fmt: skip
_AGREES = frozenset({Why.BIT_EQUAL, Why.CLEAR, Why.WITHIN_DRAWS})
SAYS_MORE = frozenset({"rope-precision"})  # than in which precision something was computed
Explain = Callable[[PairResult], Cause | None]


@dataclass(frozen=True, slots=True)
class Compared:
    """Two traces, how they line up, and what each site was computed from."""

    reference: Trace
    candidate: Trace
    alignment: Alignment
    graph: Graph


def _missing_gradients(
    alignment: Alignment, reference: Trace, candidate: Trace
) -> tuple[list[PairResult], tuple[Unmatched, ...]]:
    """Gradients that only the reference has are drifts where the candidate knows the module and has other gradients;
    and what else the candidate has not.

    That of an output is lost only by a module whose output was seen, where any was: what runs compiled is not. And that
    of a parameter is not lost where the same module of the candidate has one like it under a name of its own, or as
    many numbers in other pieces, be they in modules inside it.
    """
    own_name = {record.site.name: pair.site.name for pair in alignment.pairs for record in pair.candidate}
    unpaired = [item.site for item in alignment.candidate_only if item.site.phase == "weight"]
    called_otherwise = {(own_name.get(site.name, site.name), candidate[site].shape) for site in unpaired}
    lacking = [item.site for item in alignment.reference_only if item.site.phase == "weight" and item.site in reference]
    inside = _numbers(candidate, unpaired, lambda name: {own_name.get(one, one) for one in (name, *_around(name))})
    in_pieces = {name for (name, _), _ in _numbers(reference, lacking, lambda name: {name}).items() & inside.items()}
    names = {pair.site.name for pair in alignment.pairs}  # by the reference's names, whatever the candidate's are
    seen = {(pair.site.name, pair.site.port) for pair in alignment.pairs if pair.site.phase == "fwd"}
    kinds = {(pair.site.step, pair.site.phase, pair.site.sample) for pair in alignment.pairs}

    def is_lost(site: Site) -> bool:
        if site.phase not in BACKWARD_PHASES or site not in reference or reference[site].absent is not None:
            return False
        recorded = (site.name, site.port) in seen if seen and site.phase == "agrad" else site.name in names
        is_elsewhere = (site.name, reference[site].shape) in called_otherwise or site.name in in_pieces
        is_elsewhere = is_elsewhere and site.phase in PARAMETER_PHASES
        return recorded and not is_elsewhere and (site.step, site.phase, site.sample) in kinds

    found, left = [], []
    for item in alignment.reference_only:
        if is_lost(item.site):
            reason = f"the reference has this gradient, the candidate has not: {item.reason}"
            pair, by = (
                Pair(item.site, reference[item.site], (), "missing"),
                f"{item.site.name or 'the model'}'s backward",
            )
            chain = (Finding("coverage", Verdict.DRIFT, Why.NO_GRADIENT, {"said": item.reason}),)
            found.append(PairResult(pair, Verdict.DRIFT, reason, introduced_by=by, chain=chain))
        else:
            left.append(item)
    return found, tuple(left)


def _numbers(trace: Trace, weights: Sequence[Site], counted: Callable[[str], Set[str]]) -> dict[tuple[str, int], int]:
    """How many numbers some weights have, step by step, for each of the modules by which a name is counted."""
    found: Counter[tuple[str, int]] = Counter()
    for site in weights:
        for name in counted(site.name):
            found[name, site.step] += prod(trace[site].shape or ())
    return dict(found)


def _around(name: str) -> list[str]:
    """The modules that a module is in, but for the whole model."""
    return [name[:at] for at, letter in enumerate(name) if letter == "."]


def compose(
    judged: Sequence[PairResult], measured: Sequence[Measured], compared: Compared,
    may_miss: Callable[[Site], bool] = lambda site: False, explain: Explain | None = None,
    notes: Sequence[str] = (), settings: tuple[SettingResult, ...] = (),
    proven: Callable[[], Proves] | None = None,
) -> Result:  # fmt: skip
    """The result of a run from the verdicts of its pairs; `may_miss` tells which sites the candidate need not have,
    `explain` is asked why the first drift is one, `proven` what a green verdict proves."""
    reference, candidate, alignment = compared.reference, compared.candidate, compared.alignment
    lost, reference_only = _missing_gradients(alignment, reference, candidate)
    place = {record.site: number for number, record in enumerate(reference)} if lost else {}
    judged = sorted([*judged, *lost], key=lambda result: place.get(result.pair.reference.site, len(place)))
    drifts = [result for result in judged if result.verdict in DRIFTS]
    seen = [result for result in judged if result.measurement is not None and result.measurement.compared]
    missing = [item for item in reference_only if not may_miss(item.site)]
    problems = [
        *(f"reference {reference.path}: {problem}" for problem in reference.problems),
        *(f"candidate {candidate.path}: {problem}" for problem in candidate.problems),
        *([f"{_count(len(missing), 'reference site has', 'reference sites have')} no counterpart"] if missing else []),
        *([] if seen else ["nothing was compared"]),
    ]
    other = _other_arguments(judged)
    deciding = [result for result in judged if result not in other]
    verdict = _verdict(deciding, bool(seen))
    could_not_tell = bool(problems) or verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE)
    exit_code = 1 if drifts else 2 if could_not_tell else 0
    first = None
    if drifts:
        unseen = _not_looked_at(drifts[0], replace(alignment, reference_only=reference_only), reference)
        first = _first_drift(drifts, explain, settings, unseen)
    proves = None if exit_code or proven is None else proven()
    claim = _sentence(verdict, first, deciding, problems)
    said = (*alignment.notes, *reference.notes, *candidate.notes, *_captures(measured), *notes)
    coverage = Coverage(
        reference_sites=len(reference), candidate_sites=len(candidate), pairs=len(judged), compared=len(seen),
        elements=sum(r.measurement.compared for r in seen if r.measurement is not None),
        phases=dict(Counter(result.site.phase for result in seen)),
    )  # fmt: skip
    return Result(
        verdict=verdict, sentence=claim + _weakest(proves) + ("" if exit_code else _other_settings(settings)),
        pairs=tuple(judged), first_drift=first, cause=_benign_cause(verdict, judged),
        flips=tuple(r for r in judged if r.verdict is Verdict.FLIP), reference_only=reference_only,
        candidate_only=alignment.candidate_only, ignored=alignment.ignored, absorbed=alignment.absorbed,
        graph=compared.graph.kind, coverage=coverage, notes=tuple(dict.fromkeys((*said, *_told_of_arguments(other)))),
        problems=tuple(problems), exit_code=exit_code, settings=settings, proves=proves, claim=claim,
    )  # fmt: skip


def _count(number: int, one: str, more: str) -> str:
    return f"1 {one}" if number == 1 else f"{number} {more}"


def _verdict(judged: Sequence[PairResult], compared: bool) -> Verdict:
    """The verdict of the run: the gravest of its pairs."""
    found = {result.verdict for result in judged}
    if found & DRIFTS:
        return Verdict.DRIFT
    if not compared or Verdict.NOT_COMPARABLE in found:
        return Verdict.NOT_COMPARABLE
    if found & {Verdict.INCONCLUSIVE, Verdict.INHERITED}:  # or inherited from nothing that was found
        return Verdict.INCONCLUSIVE
    return next((verdict for verdict in (Verdict.FLIP, Verdict.NOISE) if verdict in found), Verdict.SAME)


def _other_arguments(judged: Sequence[PairResult]) -> list[PairResult]:
    """Inputs of modules that are not the same thing on both sides, where what came out agrees: implementations differ
    in what their parts hand each other."""
    apart = [r for r in judged if r.verdict is Verdict.NOT_COMPARABLE and _is_argument(r.site)]
    made: dict[Site, list[PairResult]] = {}
    for result in judged if apart else ():
        if result.site.phase == "fwd" and not _is_argument(result.site):
            made.setdefault(result.site._replace(port=""), []).append(result)
    outputs = {result.site: made.get(result.site._replace(port=""), []) for result in apart}
    return [r for r in apart if outputs[r.site] and all(_agrees(one) for one in outputs[r.site])]


def _is_argument(site: Site) -> bool:
    return site.phase == "fwd" and site.port.startswith("in.")


def _agrees(result: PairResult) -> bool:
    """Whether an output is right whatever its module was handed: the same bits, or what a replay makes of the rest."""
    return result.why in _AGREES and result.measurement is not None and result.measurement.compared > 0


def _told_of_arguments(other: Sequence[PairResult]) -> list[str]:
    if not other:
        return []
    inputs = _count(len(other), "input is another argument", "inputs are other arguments")
    return [f"{inputs} on the two sides, first {in_words(other[0].site)}; what these modules return agrees"]


def _not_looked_at(drift: PairResult, alignment: Alignment, reference: Trace) -> int:
    """How many tensors that were left out came before a drift whose own inputs nobody replayed: any of them may be
    what is wrong. What a module is fed was made by another one, and counts there."""
    if drift.why in _SURE or (drift.why is Why.INTRODUCED and not drift.facts.get("unseen")):
        return 0
    seen = {pair.reference.site for pair in alignment.pairs} | {item.site for item in alignment.reference_only}
    place = {record.site: number for number, record in enumerate(reference)}
    before = place.get(drift.pair.reference.site, 0)
    made = (site for site in place if not site.port.startswith("in.") and site not in seen)
    return sum(place[site] < before and reference[site].at is not None for site in made)


def _first_drift(
    drifts: Sequence[PairResult], explain: Explain | None, settings: Sequence[SettingResult], unseen: int
) -> FirstDrift:  # fmt: skip
    result = drifts[0]
    by = result.introduced_by or result.site.name
    by += ", or by what came before it and was not looked at" if unseen else ""
    cause = _cause(result)
    if explain is not None and (cause is None or result.verdict is Verdict.PRECISION):
        found = explain(result)
        cause = found if cause is None or (found is not None and found.label in SAYS_MORE) else cause
    stated = [setting for setting in settings if setting.effect is Effect.CHANGES and result.site in setting.sites]
    if stated and (cause is None or cause.label == "unknown"):
        cause = _of_setting(asdict(stated[0]))
    if cause is None or cause.label in ("unknown", "uninitialised"):  # which of NaN says less than that it is there
        cause = _not_finite(result) or cause
    repeats = _repeats(drifts)
    sentence = f"the first drift is {in_words(result.site)}, introduced by {by}: {result.reason}"
    if cause is not None and cause.label:
        sentence += f"; {cause.sentence}" if cause.label == "unknown" else f"; {cause.label}: {cause.sentence}"
    if unseen:
        sentence += f"; {_count(unseen, 'site before it was', 'sites before it were')} not looked at"
    if repeats:
        where = f"{repeats[0]} and {len(repeats) - 1} more" if len(repeats) > 1 else repeats[0]
        sentence += f"; systematic: the same at {where}"
    return FirstDrift(*result.site, introduced_by=by, cause=cause, sentence=sentence, repeats=repeats)


def _repeats(drifts: Sequence[PairResult]) -> tuple[str, ...]:
    """Drifts at the same place of other layers: one bug, written once and run many times."""
    first, *others = (drift.site for drift in drifts)
    alike = (one for one in others if (one.step, one.phase, one.port) == (first.step, first.phase, first.port))
    pattern = _without_numbers(first.name)
    names = dict.fromkeys(one.name for one in alike if _without_numbers(one.name) == pattern)
    return tuple(name for name in names if name != first.name)


def _without_numbers(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _cause(result: PairResult) -> Cause | None:
    """What two traces alone can name for certain."""
    measurement = result.measurement
    if result.site.phase == "input":
        return Cause("different-input", "the two sides were not fed the same data", 1.0, "feed both the same bytes")
    if result.pair.matched == "missing" or (measurement is None and result.site.phase in BACKWARD_PHASES):
        return Cause(
            "gradient-missing", "the candidate has no such gradient", 1.0, "look for a detach or a frozen flag"
        )
    if result.why is Why.SETTING:
        return _of_setting(result.facts)
    if result.verdict is Verdict.PRECISION:
        return Cause("dtype-rounding", result.reason, 0.9, "look for a cast, or for TF32 or autocast switched on")
    return None


def _of_setting(facts: Mapping[str, Any]) -> Cause:
    """A setting that the candidate states otherwise, as a cause."""
    from ..explain.labels import label_of

    key = str(facts["key"])
    sentence = f"{key} is {facts['candidate']} instead of {facts['reference']}, as the candidate states"
    parameters = {"key": key, "reference": facts["reference"], "candidate": facts["candidate"]}
    confirm = "give the candidate the reference's value, or say in a map that the difference is meant"
    return Cause(label_of(key, facts["op"]), sentence, 0.95, confirm, parameters)


def _not_finite(result: PairResult) -> Cause | None:
    """What can be said of NaN and infinities that no hypothesis explains."""
    if result.measurement is None or result.measurement.nonfinite_agree:
        return None
    sentence = "NaN or Inf appears here on one side only"
    return Cause("nan-origin", sentence, 1.0, "look at the elements that are not finite")


def _benign_cause(verdict: Verdict, judged: Sequence[PairResult]) -> Cause | None:
    stored = any(_is_layout(result) for result in judged)
    if verdict is Verdict.SAME and not stored:
        return Cause("none", "bitwise equal", 1.0)
    if verdict is Verdict.FLIP:
        flip = next(result for result in judged if result.verdict is Verdict.FLIP)
        sentence = f"near-ties were decided differently, first at {in_words(flip.site)}: {flip.reason}"
        return Cause("decision-flip", sentence, 0.9, "run another batch: a near-tie is not in every one")
    if verdict not in (Verdict.SAME, Verdict.NOISE):
        return None
    if off := [result for result in judged if _is_reference_off(result)]:
        sentence = f"it is the reference that is off, first at {in_words(off[0].site)}"
        return Cause("reference-suspect", sentence, 0.9, "trust the candidate there, and fix the reference")
    if stored:
        return Cause(
            "layout-equivalent", "something is stored or computed in another layout or order, with the same result", 0.9
        )
    amplified = [result for result in judged if result.why is Why.AMPLIFIED]
    if amplified := [result for result in amplified if result.site.phase not in ("optim", "weight_after")]:
        sentence = f"small errors are amplified, first at {in_words(amplified[0].site)}, by operations that are right"
        return Cause("ill-conditioned", sentence, 0.9, "compare in float64: the difference shrinks with the precision")
    return Cause("float-noise", "every difference is what rounding explains", 0.9)


def _is_layout(result: PairResult) -> bool:
    return result.why in (Why.GAUGE, Why.SAME_FUNCTION) or result.pair.turned


def _is_reference_off(result: PairResult) -> bool:
    return result.why is Why.NEAR_TRUTH and bool(result.facts.get("suspect"))


def _sentence(verdict: Verdict, first: FirstDrift | None, judged: Sequence[PairResult], problems: Sequence[str]) -> str:
    clean = sum(result.verdict in CLEAN for result in judged)
    if first is not None:
        return f"drift: {first.sentence}"
    if verdict is Verdict.NOT_COMPARABLE:
        open_pair = next((result for result in judged if result.verdict is Verdict.NOT_COMPARABLE), None)
        said = "nothing was compared" if open_pair is None else f"{in_words(open_pair.site)}: {open_pair.reason}"
        return f"not comparable: {said}"
    if verdict is Verdict.INCONCLUSIVE:
        open_pair = next(result for result in judged if result.verdict in (Verdict.INCONCLUSIVE, Verdict.INHERITED))
        return f"inconclusive: {in_words(open_pair.site)}: {open_pair.reason}"
    words = {
        Verdict.SAME: "bit-equal",
        Verdict.NOISE: "the same up to float noise",
        Verdict.FLIP: "the same but for near-ties",
    }
    undecided = sum(result.verdict is Verdict.INCONCLUSIVE for result in judged)
    tail = f", {undecided} could not be judged" if undecided else ""
    if off := [result for result in judged if _is_reference_off(result)]:
        tail += f", and it is the reference that is off at {in_words(off[0].site)}"
    tail += _other_dtypes(judged)
    tail += f", but {problems[0]}" if problems else ""
    pairs = "the one pair is" if clean == 1 else f"all {clean} pairs are"
    return f"{verdict.value}: {pairs} {words[verdict]}{tail}"


def _other_dtypes(judged: Sequence[PairResult]) -> str:
    """That both sides are of other floats, as far as they say."""
    both = [(result.pair.reference.dtype, result.pair.candidate[0].dtype) for result in judged if result.pair.candidate]
    other = [one for one in both if roundoff(one[0]) and roundoff(one[1]) and one[0] != one[1]]
    if not other:
        return ""
    (reference, candidate), _ = Counter(other).most_common(1)[0]
    return f", {len(other)} of them with {candidate} in the candidate where the reference has {reference}"


def _weakest(proves: Proves | None) -> str:
    if proves is None or proves.site is None:
        return ""
    where = in_words(proves.site)
    if proves.error >= 1:
        return f"; at {where} no error would be found"
    return f"; least sensitive at {where}: an error of {proves.error:.1e} in all of it would be found"


def _other_settings(settings: Sequence[SettingResult]) -> str:
    """The settings that differ under a green verdict: which, and that they change nothing."""
    if not settings:
        return ""
    keys = list(dict.fromkeys(f"{one.where}.{one.key}" if one.where else one.key for one in settings))
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    what = "a setting differs" if len(keys) == 1 else "settings differ"
    return f"; {what} without effect: {', '.join(keys[:3])}{more}"


def _captures(measured: Sequence[Measured]) -> list[str]:
    """Captures that prove little: one value everywhere, on both sides."""
    constant = [item for item in measured if item.is_constant and item.measurement is not None]
    zero = [item for item in constant if item.measurement is not None and item.measurement.norm_reference == 0]
    said = []
    for items, what in ((zero, "all zero"), ([item for item in constant if item not in zero], "constant")):
        if items:
            pairs = _count(len(items), "pair is", "pairs are")
            said.append(f"{pairs} {what} on both sides, which proves little: first {in_words(items[0].pair.site)}")
    return said
