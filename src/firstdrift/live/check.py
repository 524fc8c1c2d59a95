"""What `fd.check` does: sides, traces, matching, replays, verdicts, cause."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from .._kernels import measure
from ..capture.torch.names import plain_name
from ..compare.align import align
from ..compare.measuring import load_pair, measure_pairs
from ..compare.pairs import Pair
from ..compare.result import Cause, PairResult, Result, Verdict
from ..compare.storage import STORED_DIFFERENTLY, other_axes
from ..comparison import diff
from ..errors import CaptureError, FirstdriftError
from ..outcome import Compared, compose
from ..sites import Site
from ..traces import Array, Trace
from ..verdict.flips import in_few_places
from ..verdict.graph import Graph
from ..verdict.introduced import Introduced, settle
from ..verdict.judge import judge
from ..verdict.reasons import AMPLIFIED
from .equivalence import equivalent_parts, is_inside
from .examining import FLOAT32, Examination, examine
from .examining import compared as compared_arrays
from .explaining import UNSTABLE, explained
from .forcing import Plan, ReplayError
from .layouts import find_layout, seen_through
from .matching import Names, match
from .reseeding import Reseeding
from .sides import Side, record

_SUSPECT = (Verdict.DRIFT, Verdict.NOT_COMPARABLE)  # verdicts of weights that may only be stored in another way


def check(
    reference: nn.Module, candidate: nn.Module, inputs: Any, candidate_inputs: Any, loss_fn: Any,
    candidate_loss_fn: Any, target: Any, candidate_target: Any, optimizer: Any, candidate_optimizer: Any, *,
    name_map: Mapping[str, str] | None, seed: int, train: bool, steps: int, load: Any,
) -> Result:  # fmt: skip
    """Compare two live implementations; the arguments are those of `fd.check`, with defaults filled in."""
    if type(steps) is not int or steps < 1:
        raise CaptureError(f"steps {steps!r} is not a whole number from 1; say how many steps to compare")
    if optimizer is not None and loss_fn is None:
        raise CaptureError("an optimizer needs gradients; give loss_fn too")
    ours, theirs = copy.deepcopy(reference), copy.deepcopy(candidate)
    _load(load, ours, theirs)
    one = Side(ours, *_arguments(inputs), loss_fn, target, optimizer, train, steps, seed)
    given = _arguments(inputs if candidate_inputs is None else candidate_inputs)
    other = Side(theirs, *given, candidate_loss_fn, candidate_target, candidate_optimizer, train, steps, seed)
    with tempfile.TemporaryDirectory(prefix="firstdrift-") as folder:
        return _checked(one, other, Path(folder), name_map)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, tuple | list) else ((inputs,), {})


def _load(load: Any, reference: nn.Module, candidate: nn.Module) -> None:
    if load is None:
        return
    if load == "reference":
        _load_by_name(reference, candidate)
    elif callable(load):
        try:
            load(reference, candidate)
        except Exception as error:
            raise CaptureError(f"load raised {type(error).__name__}: {error}; mend the function") from error
    else:
        raise CaptureError(
            f"load {load!r} is not 'reference' or a function of both models; leave it out to load nothing"
        )


def _load_by_name(reference: nn.Module, candidate: nn.Module) -> None:
    ours, theirs = reference.state_dict(), candidate.state_dict()
    for side, names in (("candidate", ours.keys() - theirs.keys()), ("reference", theirs.keys() - ours.keys())):
        if names:
            some = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise CaptureError(
                f'load="reference" goes by names, and the {side} has no {some}; give a function of both models, which '
                "may call fd.load_weights with a map"
            )
    try:
        candidate.load_state_dict(ours)
    except RuntimeError as error:  # other shapes
        why = " ".join(str(error).split())[:300]
        raise CaptureError(f'load="reference" does not fit the candidate ({why}); give a function of both') from error


def _recorded(side: Side, name: str, folder: Path) -> Trace:
    """The trace of a side; what the user's own code raises is told with the side it was of."""
    try:
        return record(side, folder / name, program=True)
    except FirstdriftError as error:
        raise type(error)(f"the {name}: {error}") from error
    except Exception as error:
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise CaptureError(f"the {name} raised {why}; it has to run on these inputs by itself") from error


def _checked(reference: Side, candidate: Side, folder: Path, name_map: Mapping[str, str] | None) -> Result:
    ours = _recorded(reference, "reference", folder)
    raw = _recorded(candidate, "candidate", folder)
    known = [[plain_name(name) for name, _ in side.model.named_modules()] for side in (reference, candidate)]
    names = match(ours, raw, name_map, (known[0], known[1]))
    theirs = names.renamed(raw)
    axes = other_axes(align(ours, theirs, prefixes=False).pairs, ours, theirs)
    names = replace(names, axes=axes)
    try:
        return _examined(reference, candidate, names, ours, raw, folder)
    except ReplayError as error:
        result = diff(ours, names.renamed(raw), allow_missing=("*",))
        note = f"the reference could not be run on the candidate's tensors ({error}); the two were compared as they ran"
        return replace(result, notes=(*result.notes, note, *_matched(names.how)))


def _examined(reference: Side, candidate: Side, names: Names, ours: Trace, raw: Trace, folder: Path) -> Result:
    theirs = names.renamed(raw)
    alignment = align(ours, theirs, prefixes=False)
    measured = list(measure_pairs(alignment.pairs, ours, theirs))
    graph = Graph(ours, alignment.pairs)
    judged = judge(measured, graph, lambda pair: load_pair(pair, ours, theirs))
    examination = examine(reference, candidate, names, ours, theirs, folder)
    judged, unused = _with_weights(judged, examination)
    if unused and (axes := other_axes(alignment.pairs, ours, theirs, unused)):
        again = Path(tempfile.mkdtemp(dir=folder))
        return _examined(reference, candidate, replace(names, axes={**names.axes, **axes}), ours, raw, again)
    if unused:
        examination = examination.with_reference_weights(unused)
    found = examination.introduced(measured, graph)
    results = _with_edges(settle(judged, found, graph, {}), theirs, ours)
    parts = _equivalent_parts(results, examination, found)
    excused = _excused(judged, parts)
    if parts:
        results = _with_edges(settle(judged, found, graph, excused), theirs, ours)
    suspects = [r.site for r in results if (r.site.phase, r.verdict) == ("weight", Verdict.DRIFT) and r.site.step == 0]
    through = seen_through(examination, suspects, _outputs(results)) if suspects else None
    if through is not None:
        examination, found = through, through.introduced(measured, graph)
        outputs = _outputs(results)
        right = {name for name in {site.name for site in suspects} if _is_right(found, outputs.get(name, ()))}
        wrong = _not_undone(through, found, outputs, graph)
        excused |= _in_other_layout(judged, {*through.layouts, *right} - wrong)
        results = _with_edges(settle(judged, found, graph, excused), theirs, ours)
    results = _with_flips(results, graph, lambda pair: load_pair(pair, ours, theirs))
    results = _with_repeats(results, theirs, names.renamed(record(candidate, folder / "again")))
    compared = Compared(ours, theirs, alignment, graph)
    reseeding = Reseeding(reference, candidate, names, ours, theirs, folder)
    why = partial(explained, examination=examination, compared=compared, found=found, reseeding=reseeding)
    notes = [*examination.notes, *_matched(names.how)]
    if alignment.reference_only:
        notes.append("what has no counterpart was replayed too, and shows at the next site that has one")
    result = compose(results, measured, compared, ("*",), explain=why, notes=notes)
    stored = [".".join(filter(None, parameter)) for parameter in names.axes]
    return _with_benign_cause(result, [*parts, *examination.layouts, *stored])


def _with_weights(results: Sequence[PairResult], examination: Examination) -> tuple[list[PairResult], frozenset[Site]]:
    """A weight that differs is a drift if the reference, with its own weight, computes something else there.

    Also returned are those that are not: stored in some other way, they mean nothing to the reference.
    """
    suspects = [
        result.site
        for result in results
        if (result.site.step, result.site.phase) == (0, "weight")
        and (result.verdict in _SUSPECT or (result.error or 0.0) > (result.limit or 0.0))
    ]
    if not suspects:
        return list(results), frozenset()
    replays = examination.again("own-weights", Plan(own_weight=lambda site: site not in suspects))
    outputs = _outputs(results)
    settled, unused = [], set()
    for result in results:
        if result.site in suspects:
            near = [name for name in outputs if is_inside(result.site.name, name)]
            own = max(near, key=len, default=None)
            seen = [replays.introduced_at(site, FLOAT32) for site in (outputs[own] if own is not None else ())]
            if seen and all(one is not None and not one.beyond_noise for one in seen):
                reason = f"{STORED_DIFFERENTLY}, but everything computed with it agrees"
                result = replace(result, verdict=Verdict.NOISE, reason=reason, introduced_by=None)
                unused.add(result.site)
            elif result.verdict is not Verdict.NOT_COMPARABLE:
                reason, by = f"the weights differ by {result.error or 0.0:.1e}", "the loading of weights"
                result = replace(result, verdict=Verdict.DRIFT, reason=reason, introduced_by=by)
        settled.append(result)
    return settled, frozenset(unused)


def _with_edges(results: Sequence[PairResult], theirs: Trace, ours: Trace) -> list[PairResult]:
    """A tensor that changed on its way into a module changed for the innermost module that reads it."""
    by_site = {result.site: result for result in results}
    for result in results:
        site = result.site
        if result.verdict is not Verdict.DRIFT or site.phase != "fwd" or not site.port.startswith("in."):
            continue
        readers = [
            other
            for other in by_site
            if other.step == site.step and other.phase == "fwd" and other.port.startswith("in.")
            and other.name != site.name and is_inside(other.name, site.name)
            and theirs[other].at == theirs[site].at and ours[other].at == ours[site].at
        ]  # fmt: skip
        if readers:
            inner = max(readers, key=lambda other: other.name.count("."))
            moved = replace(by_site[inner], verdict=result.verdict, reason=result.reason, introduced=result.introduced)
            by_site[inner] = replace(moved, introduced_by=result.introduced_by)
            reason = f"{result.reason}; it is read by {inner.name}"
            by_site[site] = replace(result, verdict=Verdict.INHERITED, reason=reason, introduced_by=None)
    return list(by_site.values())


def _with_flips(
    results: Sequence[PairResult], graph: Graph, load: Callable[[Pair], tuple[Array, Array]]
) -> list[PairResult]:
    """Noise that is amplified in a few places alone was amplified by a decision; so was what follows from there."""
    settled: dict[Site, PairResult] = {}
    for result in results:
        if result.reason.startswith(AMPLIFIED) and result.measurement is not None:
            before = [settled[site] for site in graph.producers(result.site) if site in settled]
            behind = any(other.verdict is Verdict.FLIP for other in before)
            if behind or in_few_places(*load(result.pair), result.limit or 0.0):
                reason = "near-ties were decided the other way; replayed with the candidate's decisions, it agrees"
                result = replace(result, verdict=Verdict.FLIP, reason=reason)
        settled[result.site] = result
    return list(settled.values())


def _with_repeats(results: Sequence[PairResult], once: Trace, again: Trace) -> list[PairResult]:
    """A candidate that computes something else every time has no verdict but this one."""
    for number, result in enumerate(results):
        both = compared_arrays(once, again, result.site)
        if both is None or result.measurement is None:
            continue
        apart = measure(*both)
        if not apart.bit_equal and not (apart.rel_l2 or 0.0) <= max(result.limit or 0.0, FLOAT32):
            reason = f"{UNSTABLE}: they differ by {apart.rel_l2 or 0.0:.1e}, fed the same, with the same seed"
            by = result.introduced_by or result.site.name or "the model itself"
            moved = replace(result, verdict=Verdict.DRIFT, reason=reason, introduced_by=by)
            return [*results[:number], moved, *results[number + 1 :]]
    return list(results)


def _outputs(results: Sequence[PairResult]) -> dict[str, list[Site]]:
    outputs: dict[str, list[Site]] = {}
    for result in results:
        if result.site.phase == "fwd" and result.site.port.startswith("out"):
            outputs.setdefault(result.site.name, []).append(result.site)
    return outputs


def _equivalent_parts(
    results: Sequence[PairResult], examination: Examination, found: Mapping[Site, Introduced]
) -> list[str]:
    """Parts that compute the reference's function, although something inside them drifts.

    What shows as it is run alone is no matter of layout.
    """
    how = (examination.precise or examination.as_run).how
    drifts = [r for r in results if r.verdict in (Verdict.DRIFT, Verdict.PRECISION)]
    sites = [r.site for r in drifts if r.site.phase == "weight" or (r.site.phase == "fwd" and found[r.site].how == how)]
    return equivalent_parts(examination, sites, _outputs(results)) if sites else []


def _excused(results: Sequence[PairResult], parts: Sequence[str]) -> dict[Site, str]:
    excused = {}
    for result in results:
        part = next((one for one in parts if _is_within(result.site, one)), None)
        if part is not None:
            where = part or "the model"
            excused[result.site] = f"stored or computed in another layout; {where} as a whole is the same function"
    return excused


def _not_undone(
    through: Examination, found: Mapping[Site, Introduced], outputs: Mapping[str, Sequence[Site]], graph: Graph
) -> set[str]:
    """Modules in another layout whose readers make of it the reference's channels times other numbers: nothing undoes
    this layout, so that it is the weights that are wrong, and no reader."""
    wrong = set()
    for name in through.layouts:
        read = [other for site in outputs.get(name, ()) for other in graph.consumers(site)]
        for site in (one for reader in read for one in outputs.get(reader.name, ())):
            if through.precise is None or site not in found or not found[site].beyond_noise:
                continue
            both = compared_arrays(through.precise.exact, through.precise.candidate, site)
            channels = {both[0].shape[-1], both[0].shape[1]} if both is not None and both[0].ndim > 1 else set()
            if both is not None and any(find_layout(*both, one, through.stored_floor) for one in channels):
                wrong.add(name)
    return wrong


def _is_right(found: Mapping[Site, Introduced], sites: Sequence[Site]) -> bool:
    return bool(sites) and all(site in found and not found[site].beyond_noise for site in sites)


def _in_other_layout(results: Sequence[PairResult], modules: Set[str]) -> dict[Site, str]:
    """Weights in another layout, and what is in that layout because of them."""
    reason = "stored in another layout, and seen through"

    def is_in_it(site: Site) -> bool:
        if site.phase in ("fwd", "agrad"):
            return site.name in modules and site.port.startswith("out")
        return site.phase not in ("input", "loss", "lossgrad") and site.name in modules

    return {result.site: reason for result in results if is_in_it(result.site)}


def _is_within(site: Site, part: str) -> bool:
    if site.phase in ("fwd", "agrad") and site.name == part:
        return False
    return is_inside(site.name, part) and site.phase not in ("input", "loss", "lossgrad")


def _matched(how: Mapping[str, str]) -> list[str]:
    kinds = [kind for kind in dict.fromkeys(how.values()) if kind != "name"]
    words = {
        "map": "the map",
        "weights": "their weights",
        "order": "structure and order",
        "structure": "what they hold",
    }
    return [f"{list(how.values()).count(kind)} modules were matched by {words[kind]}" for kind in kinds]


def _with_benign_cause(result: Result, parts: Sequence[str]) -> Result:
    if result.verdict in (Verdict.SAME, Verdict.NOISE) and parts:
        where = ", ".join(part or "the model" for part in parts)
        cause = Cause(
            "layout-equivalent", f"stored or computed in another layout, with the same function: {where}", 0.9
        )
        return replace(result, cause=cause)
    return result
