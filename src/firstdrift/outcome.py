"""From verdicts of pairs to the result of a run: the first drift, its cause, sentences, coverage, exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod

from .compare.measuring import Measured
from .compare.pairs import Alignment, Pair, Unmatched
from .compare.result import CLEAN, Cause, Coverage, FirstDrift, PairResult, Result, Verdict
from .compare.storage import STORED_DIFFERENTLY
from .judge.nan_pairs import refuse_nan
from .sites import BACKWARD_PHASES, PARAMETER_PHASES, Site
from .traces import Trace
from .verdict.graph import Graph
from .verdict.reasons import AMPLIFIED, LAYOUT, REFERENCE_OFF

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
    judged: list[PairResult], alignment: Alignment, ours: Trace, theirs: Trace
) -> tuple[list[PairResult], tuple[Unmatched, ...]]:
    """Gradients that only the reference has are drifts where the candidate knows the module and has other gradients.

    That of an output is lost only by a module whose output was seen, where any was: what runs compiled is not. And that
    of a parameter is not lost where the same module of the candidate has one like it under a name of its own, or as
    many numbers in other pieces.
    """
    own_name = {record.site.name: pair.site.name for pair in alignment.pairs for record in pair.candidate}
    unpaired = [item.site for item in alignment.candidate_only if item.site.phase == "weight"]
    called_otherwise = {(own_name.get(site.name, site.name), theirs[site].shape) for site in unpaired}
    lacking = [item.site for item in alignment.reference_only if item.site.phase == "weight" and item.site in ours]
    pieces = _numbers(ours, lacking, {}).items() & _numbers(theirs, unpaired, own_name).items()
    in_pieces = {name for (name, _), _ in pieces}
    names = {pair.site.name for pair in alignment.pairs}  # by the reference's names, whatever the candidate's are
    seen = {(pair.site.name, pair.site.port) for pair in alignment.pairs if pair.site.phase == "fwd"}
    kinds = {(pair.site.step, pair.site.phase, pair.site.sample) for pair in alignment.pairs}
    found, left = [], []
    for item in alignment.reference_only:
        site = item.site
        recorded = (site.name, site.port) in seen if seen and site.phase == "agrad" else site.name in names
        known = recorded and (site.step, site.phase, site.sample) in kinds
        if site.phase in PARAMETER_PHASES and site in ours:
            known = known and (site.name, ours[site].shape) not in called_otherwise and site.name not in in_pieces
        if site.phase in BACKWARD_PHASES and known and site in ours and ours[site].absent is None:
            reason = f"the reference has this gradient, the candidate has not: {item.reason}"
            pair, by = Pair(site, ours[site], (), "missing"), f"{site.name or 'the model'}'s backward"
            found.append(PairResult(pair, Verdict.DRIFT, reason, introduced_by=by))
        else:
            left.append(item)
    place = {record.site: number for number, record in enumerate(ours)}
    both = [*judged, *found]
    if found:
        both.sort(key=lambda result: place.get(result.pair.reference.site, len(place)))
    return both, tuple(left)


def _numbers(trace: Trace, weights: Sequence[Site], names: Mapping[str, str]) -> dict[tuple[str, int], int]:
    """How many numbers some weights of each module have, step by step, by names that both sides share."""
    found: Counter[tuple[str, int]] = Counter()
    for site in weights:
        found[names.get(site.name, site.name), site.step] += prod(trace[site].shape or ())
    return dict(found)


def compose(
    judged: Sequence[PairResult], measured: Sequence[Measured], compared: Compared, allowed: tuple[str, ...] = (),
    explain: Explain | None = None, notes: Sequence[str] = (), allow_nan: Sequence[str] = (),
) -> Result:  # fmt: skip
    """The result of a run from the verdicts of its pairs; `explain` is asked why the first drift is one."""
    ours, theirs, graph = compared.reference, compared.candidate, compared.graph
    judged, missing = _missing_gradients(refuse_nan(judged, allow_nan), compared.alignment, ours, theirs)
    alignment = replace(compared.alignment, reference_only=missing)
    return _result(judged, alignment, graph, ours, theirs, allowed, (*_captures(measured), *notes), explain)


def _result(
    judged: list[PairResult], alignment: Alignment, graph: Graph, ours: Trace, theirs: Trace, allowed: tuple[str, ...],
    captures: Sequence[str], explain: Explain | None,
) -> Result:  # fmt: skip
    drifts = [result for result in judged if result.verdict in (Verdict.DRIFT, Verdict.PRECISION)]
    compared = [result for result in judged if result.measurement is not None and result.measurement.compared]
    missing = [i for i in alignment.reference_only if not any(fnmatchcase(i.site.name, glob) for glob in allowed)]
    problems = [
        *(f"reference {ours.path}: {problem}" for problem in ours.problems),
        *(f"candidate {theirs.path}: {problem}" for problem in theirs.problems),
        *([_no_counterpart(len(missing))] if missing else []),
        *([] if compared else ["nothing was compared"]),
    ]
    other = _other_arguments(judged)
    deciding = [result for result in judged if result not in other]
    verdict = _verdict(deciding, bool(compared))
    first = _first_drift(drifts, explain) if drifts else None
    coverage = Coverage(
        reference_sites=len(ours), candidate_sites=len(theirs), pairs=len(judged), compared=len(compared),
        elements=sum(r.measurement.compared for r in compared if r.measurement is not None),
        phases=dict(Counter(result.site.phase for result in compared)),
    )  # fmt: skip
    could_not_tell = bool(problems) or verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE)
    notes = (*alignment.notes, *ours.notes, *theirs.notes, *captures, *_told_of_arguments(other))
    return Result(
        verdict=verdict, sentence=_sentence(verdict, first, deciding, problems), pairs=tuple(judged), first_drift=first,
        cause=_benign_cause(verdict, judged), flips=tuple(r for r in judged if r.verdict is Verdict.FLIP),
        reference_only=alignment.reference_only, candidate_only=alignment.candidate_only, ignored=alignment.ignored,
        graph=graph.kind, coverage=coverage, notes=tuple(dict.fromkeys(notes)), problems=tuple(problems),
        exit_code=1 if drifts else 2 if could_not_tell else 0,
    )  # fmt: skip


def _verdict(judged: Sequence[PairResult], compared: bool) -> Verdict:
    """The verdict of the run: the gravest of its pairs."""
    found = {result.verdict for result in judged}
    if found & {Verdict.DRIFT, Verdict.PRECISION}:
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
    return result.verdict in CLEAN and result.measurement is not None and result.measurement.compared > 0


def _told_of_arguments(other: Sequence[PairResult]) -> list[str]:
    if not other:
        return []
    inputs = "1 input is another argument" if len(other) == 1 else f"{len(other)} inputs are other arguments"
    return [f"{inputs} on the two sides, first {shown(other[0].site)}; what these modules return agrees"]


def _first_drift(drifts: Sequence[PairResult], explain: Explain | None) -> FirstDrift:
    result = drifts[0]
    by = result.introduced_by or result.site.name
    cause = _cause(result)
    if explain is not None and (cause is None or result.verdict is Verdict.PRECISION):
        found = explain(result)
        cause = found if cause is None or (found is not None and found.label in SAYS_MORE) else cause
    if cause is None or cause.label in ("unknown", "uninitialised"):  # which of NaN says less than that it is there
        cause = _not_finite(result) or cause
    repeats = _repeats(drifts)
    sentence = f"the first drift is {shown(result.site)}, introduced by {by}: {result.reason}"
    if cause is not None and cause.label:
        sentence += f"; {cause.sentence}" if cause.label == "unknown" else f"; {cause.label}: {cause.sentence}"
    if repeats:
        where = f"{repeats[0]} and {len(repeats) - 1} more" if len(repeats) > 1 else repeats[0]
        sentence += f"; systematic: the same at {where}"
    return FirstDrift(*result.site, introduced_by=by, cause=cause, sentence=sentence, repeats=repeats)


def _repeats(drifts: Sequence[PairResult]) -> tuple[str, ...]:
    """Drifts at the same place of other layers: one bug, written once and run many times."""
    first = drifts[0].site
    pattern = _without_numbers(first.name)
    return tuple(
        dict.fromkeys(
            other.site.name
            for other in drifts[1:]
            if (other.site.step, other.site.phase, other.site.port) == (first.step, first.phase, first.port)
            and other.site.name != first.name
            and _without_numbers(other.site.name) == pattern
        )
    )


def _without_numbers(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _no_counterpart(count: int) -> str:
    return "1 reference site has no counterpart" if count == 1 else f"{count} reference sites have no counterpart"


def shown(site: Site) -> str:
    place = site.name or "the model"
    port = "" if site.port in ("out", "weight") else f":{site.port}"
    told = (("step", site.step), ("call", site.call), ("sample", site.sample))
    where = ", ".join(f"{word} {number}" for word, number in told if number or (word == "sample" and number == 0))
    return f"{site.phase} {place}{port}" + (f" ({where})" if where else "")


def _cause(result: PairResult) -> Cause | None:
    """What two traces alone can name for certain."""
    measurement = result.measurement
    if result.site.phase == "input":
        return Cause("different-input", "the two sides were not fed the same data", 1.0, "feed both the same bytes")
    if result.pair.matched == "missing" or (measurement is None and result.site.phase in BACKWARD_PHASES):
        return Cause(
            "gradient-missing", "the candidate has no such gradient", 1.0, "look for a detach or a frozen flag"
        )
    if result.verdict is Verdict.PRECISION:
        label = "accumulator-precision" if "accumulator" in result.reason else "dtype-rounding"
        return Cause(label, result.reason, 0.9, "look for a cast, or for TF32 or autocast switched on")
    return None


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
        sentence = f"near-ties were decided the other way, first at {shown(flip.site)}: {flip.reason}"
        return Cause("decision-flip", sentence, 0.9, "run another batch: a near-tie is not in every one")
    if verdict not in (Verdict.SAME, Verdict.NOISE):
        return None
    if off := [result for result in judged if REFERENCE_OFF in result.reason]:
        sentence = f"it is the reference that is off, first at {shown(off[0].site)}"
        return Cause("reference-suspect", sentence, 0.9, "trust the candidate there, and mend the reference")
    if stored:
        return Cause(
            "layout-equivalent", "something is stored or computed in another layout or order, with the same result", 0.9
        )
    amplified = [result for result in judged if result.reason.startswith(AMPLIFIED)]
    if amplified := [result for result in amplified if result.site.phase not in ("optim", "weight_after")]:
        sentence = f"small errors are amplified, first at {shown(amplified[0].site)}, by operations that are right"
        return Cause("ill-conditioned", sentence, 0.9, "compare in float64: the difference shrinks with the precision")
    return Cause("float-noise", "every difference is what rounding explains", 0.9)


def _is_layout(result: PairResult) -> bool:
    said = (result.reason, *result.pair.notes)
    return result.reason.startswith(LAYOUT) or any(STORED_DIFFERENTLY in text for text in said)


def _sentence(verdict: Verdict, first: FirstDrift | None, judged: Sequence[PairResult], problems: Sequence[str]) -> str:
    clean = sum(result.verdict in CLEAN for result in judged)
    if first is not None:
        return f"drift: {first.sentence}"
    if verdict is Verdict.NOT_COMPARABLE:
        reason = next((r.reason for r in judged if r.verdict is Verdict.NOT_COMPARABLE), "nothing was compared")
        return f"not comparable: {reason}"
    if verdict is Verdict.INCONCLUSIVE:
        reason = next(r.reason for r in judged if r.verdict in (Verdict.INCONCLUSIVE, Verdict.INHERITED))
        return f"inconclusive: {reason}"
    words = {
        Verdict.SAME: "bit-equal",
        Verdict.NOISE: "the same up to float noise",
        Verdict.FLIP: "the same but for near-ties",
    }
    undecided = sum(result.verdict is Verdict.INCONCLUSIVE for result in judged)
    tail = f", {undecided} could not be judged" if undecided else ""
    if off := [result for result in judged if REFERENCE_OFF in result.reason]:
        tail += f", and it is the reference that is off at {shown(off[0].site)}"
    tail += f", but {problems[0]}" if problems else ""
    pairs = "the one pair is" if clean == 1 else f"all {clean} pairs are"
    return f"{verdict.value}: {pairs} {words[verdict]}{tail}"


def _captures(measured: Sequence[Measured]) -> list[str]:
    """Captures that prove little: one value everywhere, on both sides."""
    constant = [item for item in measured if item.is_constant and item.measurement is not None]
    zero = [item for item in constant if item.measurement is not None and item.measurement.norm_reference == 0]
    said = []
    for items, what in ((zero, "all zero"), ([item for item in constant if item not in zero], "constant")):
        if items:
            pairs = "1 pair is" if len(items) == 1 else f"{len(items)} pairs are"
            said.append(f"{pairs} {what} on both sides, which proves little: first {shown(items[0].pair.site)}")
    return said
