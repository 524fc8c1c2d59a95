"""Two traces in, a result out: `diff`, `compare_pairs` and `assert_same`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from .compare.align import Selection, align
from .compare.batches import Units
from .compare.measuring import Measured, load_pair, measure_pairs
from .compare.pairs import Alignment, Pair, Unmatched
from .compare.result import CLEAN, Cause, Coverage, FirstDrift, PairResult, Result, Verdict
from .errors import SelectionError
from .formats.npy_steps import check_same_probes
from .opening import open_trace
from .sites import BACKWARD_PHASES, Site
from .store.reader import verify as compare_checksums
from .traces import Trace
from .verdict.arbiter import ask
from .verdict.graph import Graph
from .verdict.judge import REFERENCE_OFF, judge
from .verdict.jump import judge_by_jump

if TYPE_CHECKING:
    from .compare.mapping import Mapping

Source = str | PathLike[str] | Trace


@dataclass(frozen=True, slots=True)
class Opened:
    """Both sides, opened, and how they line up."""

    reference: Trace
    candidate: Trace
    alignment: Alignment


def align_traces(
    reference: Source, candidate: Source, *, map: Mapping | str | PathLike[str] | None = None,
    only: Sequence[str] = (), phases: Sequence[str] = (), ignore: Sequence[str] = (),
    reference_reduction: str | None = None, candidate_reduction: str | None = None, batch: int | None = None,
    order: str | PathLike[str] | None = None,
) -> Opened:  # fmt: skip
    """Open two traces and pair their sites."""
    ours, theirs = _open(reference, order), _open(candidate, order)
    if map is None:
        check_same_probes(ours, theirs)
    mapping = _read_map(map) if isinstance(map, str | PathLike) else map
    units = Units.of(ours, theirs, (reference_reduction, candidate_reduction), batch)
    selection = Selection(tuple(only), tuple(phases), tuple(ignore))
    return Opened(ours, theirs, align(ours, theirs, mapping=mapping, selection=selection, units=units))


def compare_pairs(reference: Source, candidate: Source, **options: object) -> list[Measured]:
    """The measurements of every pair, in causal order, as data; `options` as in `diff`, as far as they align."""
    opened = align_traces(reference, candidate, **options)  # type: ignore[arg-type]
    return list(measure_pairs(opened.alignment.pairs, opened.reference, opened.candidate))


def diff(
    reference: Source, candidate: Source, *, truth: Source | None = None,
    map: Mapping | str | PathLike[str] | None = None, only: Sequence[str] = (), phases: Sequence[str] = (),
    ignore: Sequence[str] = (), allow_missing: Sequence[str] = (), verify: bool = False, rule: str = "noise",
    abs_floor: float = 1e-4, reference_reduction: str | None = None, candidate_reduction: str | None = None,
    batch: int | None = None, order: str | PathLike[str] | None = None, advance: Callable[[int], None] | None = None,
) -> Result:  # fmt: skip
    """Compare two traces and say where they first part.

    `truth` is a third trace, of a float64 run, that decides which side is off. `map` is a mapping file. `only`,
    `phases`, `ignore` and `allow_missing` are globs. `rule="jump"` is the rule of training-step traces, with its
    `abs_floor`. Reductions and `batch` say what gradients are of where a format cannot. `advance` is called with
    every number of bytes measured.
    """
    if rule not in ("noise", "jump"):
        raise SelectionError(f"there is no rule {rule!r}; choose noise or jump")
    opened = align_traces(
        reference, candidate, map=map, only=only, phases=phases, ignore=ignore, batch=batch, order=order,
        reference_reduction=reference_reduction, candidate_reduction=candidate_reduction,
    )  # fmt: skip
    ours, theirs = opened.reference, opened.candidate
    if verify:
        ours = ours.with_problems(compare_checksums(ours))
        theirs = theirs.with_problems(compare_checksums(theirs))
    alignment = opened.alignment
    measured = list(measure_pairs(alignment.pairs, ours, theirs, advance or (lambda nbytes: None)))
    graph = Graph(ours, alignment.pairs)
    truths = ask(measured, ours, theirs, _open(truth, order)) if truth is not None else None
    judged = judge(measured, graph, lambda pair: load_pair(pair, ours, theirs), truths)
    if rule == "jump":
        judged = judge_by_jump(measured, judged, ours, theirs, abs_floor)
    judged, missing = _missing_gradients(judged, alignment, ours)
    return _result(
        judged,
        replace(alignment, reference_only=missing),
        graph,
        ours,
        theirs,
        tuple(allow_missing),
        _captures(measured),
    )


def assert_same(reference: Source, candidate: Source, **options: object) -> Result:
    """Raise AssertionError, with the report's first lines, unless the traces are the same up to noise."""
    result = diff(reference, candidate, **options)  # type: ignore[arg-type]
    if result.exit_code:
        from .report.text import render

        raise AssertionError(render(result, limit=20))
    return result


def _read_map(path: str | PathLike[str]) -> Mapping:
    from .compare.mapping import read_map

    return read_map(Path(path))


def _open(source: Source, order: str | PathLike[str] | None) -> Trace:
    return source if isinstance(source, Trace) else open_trace(source, order=order)


def _missing_gradients(
    judged: list[PairResult], alignment: Alignment, ours: Trace
) -> tuple[list[PairResult], tuple[Unmatched, ...]]:
    """Gradients that only the reference has are drifts where the candidate knows the module and has other gradients.

    That of an output is lost only by a module whose output was seen, where any was: what runs compiled is not.
    """
    names = {pair.site.name for pair in alignment.pairs}  # by the reference's names, whatever the candidate's are
    seen = {pair.site.name for pair in alignment.pairs if pair.site.phase == "fwd"} or names
    kinds = {(pair.site.step, pair.site.phase, pair.site.sample) for pair in alignment.pairs}
    found, left = [], []
    for item in alignment.reference_only:
        site = item.site
        known = (site.step, site.phase, site.sample) in kinds and site.name in (
            seen if site.phase == "agrad" else names
        )
        if site.phase in BACKWARD_PHASES and known and site in ours and ours[site].absent is None:
            reason = f"the reference has this gradient, the candidate has not: {item.reason}"
            pair = Pair(site, ours[site], (), "missing")
            found.append(PairResult(pair, Verdict.DRIFT, reason, introduced_by=f"{site.name}'s backward"))
        else:
            left.append(item)
    place = {record.site: number for number, record in enumerate(ours)}
    both = [*judged, *found]
    if found:
        both.sort(key=lambda result: place.get(result.pair.reference.site, len(place)))
    return both, tuple(left)


def _result(
    judged: list[PairResult], alignment: Alignment, graph: Graph, ours: Trace, theirs: Trace, allowed: tuple[str, ...],
    captures: Sequence[str],
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
    verdict = _verdict(judged, bool(compared))
    first = _first_drift(drifts[0]) if drifts else None
    coverage = Coverage(
        reference_sites=len(ours), candidate_sites=len(theirs), pairs=len(judged), compared=len(compared),
        elements=sum(r.measurement.compared for r in compared if r.measurement is not None),
        phases=dict(Counter(result.site.phase for result in compared)),
    )  # fmt: skip
    could_not_tell = bool(problems) or verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE)
    notes = (*alignment.notes, *ours.notes, *theirs.notes, *captures)
    return Result(
        verdict=verdict, sentence=_sentence(verdict, first, judged, problems), pairs=tuple(judged), first_drift=first,
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
    if any(result.verdict is Verdict.INCONCLUSIVE and not _vouched_for(result, judged) for result in judged):
        return Verdict.INCONCLUSIVE
    if Verdict.INHERITED in found:  # from nothing that was found: never green
        return Verdict.INCONCLUSIVE
    for verdict in (Verdict.FLIP, Verdict.NOISE, Verdict.INCONCLUSIVE):
        if verdict in found:
            return Verdict.NOISE if verdict is Verdict.INCONCLUSIVE else verdict
    return Verdict.SAME


def _vouched_for(result: PairResult, judged: Sequence[PairResult]) -> bool:
    """One optimizer updates all parameters: where it was judged on others, one that shows nothing leaves no doubt."""
    step, phase = result.site.step, result.site.phase
    return phase == "weight_after" and any(
        other.verdict in CLEAN
        and other.measurement is not None
        and (other.site.step, other.site.phase) == (step, phase)
        for other in judged
    )


def _first_drift(result: PairResult) -> FirstDrift:
    by = result.introduced_by or result.site.name
    shown = _shown(result.site)
    sentence = f"the first drift is {shown}, introduced by {by}: {result.reason}"
    return FirstDrift(*result.site, introduced_by=by, cause=_cause(result), sentence=sentence)


def _no_counterpart(count: int) -> str:
    return "1 reference site has no counterpart" if count == 1 else f"{count} reference sites have no counterpart"


def _shown(site: Site) -> str:
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
        return Cause("dtype-rounding", result.reason, 0.9, "look for a cast, or for TF32 or autocast switched on")
    if measurement is not None and not measurement.nonfinite_agree:
        sentence = "NaN or Inf appears here on one side only"
        return Cause("nan-origin", sentence, 1.0, "look at the elements that are not finite")
    return None


def _benign_cause(verdict: Verdict, judged: Sequence[PairResult]) -> Cause | None:
    if verdict is Verdict.SAME:
        return Cause("none", "bitwise equal", 1.0)
    if verdict is not Verdict.NOISE:
        return None
    if off := [result for result in judged if REFERENCE_OFF in result.reason]:
        sentence = f"it is the reference that is off, first at {_shown(off[0].site)}"
        return Cause("reference-suspect", sentence, 0.9, "trust the candidate there, and mend the reference")
    if any("stored differently" in result.reason for result in judged):
        return Cause("layout-equivalent", "weights are stored differently, but compute the same", 0.9)
    return Cause("float-noise", "every difference is what rounding explains", 0.9)


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
        tail += f", and it is the reference that is off at {_shown(off[0].site)}"
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
            said.append(f"{pairs} {what} on both sides, which proves little: first {_shown(items[0].pair.site)}")
    return said
