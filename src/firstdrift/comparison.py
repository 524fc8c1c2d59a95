"""Two traces in, a result out: `diff`, `compare_pairs` and `assert_same`.

What only some comparisons need is imported where they need it, so that one that finds nothing starts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .compare.align import Selection, align
from .compare.batches import Units
from .compare.measuring import Measured, load_pair, load_recorded, measure_pairs
from .compare.pair_rows import PairRow, row_of_pair
from .compare.pairs import Alignment, Pair, ReconcileError, apply_all
from .compare.result import Cause, PairResult, Result, Verdict
from .compare.storage import as_stored
from .dtypes import roundoff
from .errors import SelectionError
from .judge.programs import is_torch_here, replays_for
from .opening import open_trace
from .outcome import Compared, compose, shown
from .sites import Site
from .store.reader import verify as compare_checksums
from .strict_json import Json, encode
from .traces import Array, Trace, unchanged
from .verdict.graph import Graph
from .verdict.introduced import Introduced, settle
from .verdict.judge import judge
from .verdict.limits import Limits
from .verdict.noise import least_limit
from .verdict.readers import settle_edges
from .verdict.reasons import CALIBRATED, LAYOUT

if TYPE_CHECKING:
    from .causes.evidence import Evidence
    from .compare.mapping import Mapping
    from .judge.replays import Replays
    from .verdict.arbiter import Truth

    Map = Mapping | str | PathLike[str] | dict[str, Json]

Source = str | PathLike[str] | Trace
Globs = str | Sequence[str]  # one, or several
BEHIND_DRIFT = 1 << 24  # elements that are replayed behind a drift, to tell whether it is the only one
USUAL = 0.1  # of what noise can be at most, it usually is


@dataclass(frozen=True, slots=True)
class Opened:
    """Both sides, opened, and how they line up."""

    reference: Trace
    candidate: Trace
    alignment: Alignment


def align_traces(
    reference: Source, candidate: Source, *, map: Map | None = None,
    only: Globs = (), phases: Globs = (), ignore: Globs = (),
    reference_reduction: str | None = None, candidate_reduction: str | None = None, batch: int | None = None,
    order: str | PathLike[str] | None = None,
) -> Opened:  # fmt: skip
    """Open two traces and pair their sites."""
    ours, theirs = _open(reference, order), _open(candidate, order)
    if map is None and "probes" in ours.header:
        from .formats.npy_steps import check_same_probes

        check_same_probes(ours, theirs)
    mapping = _read_map(map) if isinstance(map, str | PathLike | dict) else map
    units = Units.of(ours, theirs, (reference_reduction, candidate_reduction), batch)
    selection = Selection(_globs(only), _globs(phases), _globs(ignore))
    alignment = align(ours, theirs, mapping=mapping, selection=selection, units=units)
    return Opened(ours, theirs, replace(alignment, pairs=as_stored(alignment.pairs, ours, theirs)))


def compare_pairs(reference: Source, candidate: Source, **options: object) -> list[PairRow]:
    """The measurements of every pair, in causal order, as data; `options` as in `diff`, as far as they align.

    A row has `probe`, `phase`, `tier`, `max_abs` and `max_rel`, as comparators of training-step traces give them
    (`tier` 0 to 7: fwd, lossgrad, agrad, grad, grad_scaled, weight, weight_after, others), the rest of its site, and
    `measurement`; `row.to_dict()` is flat, with the same keys for every row. Different shapes give infinity.
    """
    opened = align_traces(reference, candidate, **options)  # type: ignore[arg-type]
    with unchanged(opened.reference, opened.candidate):
        return list(map(row_of_pair, measure_pairs(opened.alignment.pairs, opened.reference, opened.candidate)))


def diff(
    reference: Source, candidate: Source, *, truth: Source | None = None,
    map: Map | None = None, only: Globs = (), phases: Globs = (),
    ignore: Globs = (), allow_missing: Globs = (), allow_nan: Globs = (), verify: bool = False, rule: str = "noise",
    abs_floor: float = 1e-4, reference_reduction: str | None = None, candidate_reduction: str | None = None,
    batch: int | None = None, order: str | PathLike[str] | None = None, explain: bool = True,
    advance: Callable[[int], None] | None = None,
) -> Result:  # fmt: skip
    """Compare two traces and say where they first part.

    `truth` is a third trace, of a float64 run, that decides which side is off. `map` is a mapping file, or a table of
    what one says. `only`, `phases`, `ignore`, `allow_missing` and `allow_nan` (names in which NaN is meant) are globs,
    one or several. `rule="jump"` is the rule of training-step traces, with its `abs_floor`. Reductions and `batch` say
    what gradients are of where a format cannot. Without `explain` nobody asks why. `advance` is called with every
    number of bytes measured.
    """
    if rule not in ("noise", "jump"):
        raise SelectionError(f"there is no rule {rule!r}; choose noise or jump")
    opened = align_traces(
        reference, candidate, map=map, only=only, phases=phases, ignore=ignore, batch=batch, order=order,
        reference_reduction=reference_reduction, candidate_reduction=candidate_reduction,
    )  # fmt: skip
    arbiter = None if truth is None else _open(truth, order)
    traces = (opened.reference, opened.candidate, *(() if arbiter is None else (arbiter,)))
    with unchanged(*traces), np.errstate(all="ignore"):  # NaN is for the verdict to tell, and not for numpy
        allowed = (_globs(allow_missing), _globs(allow_nan))
        return _compared(opened, arbiter, verify, rule, abs_floor, allowed, explain, advance)


def _compared(
    opened: Opened, truth: Trace | None, verify: bool, rule: str, abs_floor: float,
    allowed: tuple[tuple[str, ...], tuple[str, ...]], explain: bool, advance: Callable[[int], None] | None,
) -> Result:  # fmt: skip
    ours, theirs = opened.reference, opened.candidate
    if verify:
        ours = ours.with_problems(compare_checksums(ours))
        theirs = theirs.with_problems(compare_checksums(theirs))
    alignment = opened.alignment
    measured = list(measure_pairs(alignment.pairs, ours, theirs, advance or (lambda nbytes: None)))
    graph = Graph(ours, alignment.pairs)
    truths = _truths(measured, ours, theirs, truth) if truth is not None else None
    judged = judge(measured, graph, lambda pair: load_pair(pair, ours, theirs), truths)
    compared = Compared(ours, theirs, alignment, graph)
    replays, notes = None, []
    if rule == "jump":
        from .verdict.jump import judge_by_jump

        judged = judge_by_jump(measured, judged, abs_floor)
    elif truths is None:
        doubted = [result for result in judged if _is_in_doubt(result)]
        asked = [result.site for result in doubted]
        replays = replays_for(ours, theirs, alignment.pairs, asked)
        if asked and not is_torch_here():
            notes.append(_without_torch(len(asked)))
        layouts = {result.site: result.reason for result in judged if result.reason.startswith(LAYOUT)}
        introduced = {} if replays is None else _introduced(replays, doubted, measured, graph)
        judged = settle(judged, introduced, graph, layouts)
        judged = _at_readers(judged, lambda pair: load_pair(pair, ours, theirs))
    why = partial(_explain, compared=compared, replays=replays) if explain else None
    allow_missing, allow_nan = allowed
    return compose(judged, measured, compared, allow_missing, why, notes, allow_nan)


def _without_torch(doubts: int) -> str:
    pairs = "1 pair in doubt was" if doubts == 1 else f"{doubts} pairs in doubt were"
    return (
        f"{pairs} judged by limits alone; install firstdrift[torch] to run the reference's operations on their inputs"
    )


def _at_readers(judged: Sequence[PairResult], load: Callable[[Pair], tuple[Array, Array]]) -> list[PairResult]:
    """Drifts of what modules are fed, named at the innermost that reads it."""
    results = {result.site: result for result in judged}
    settle_edges(results, [result.site for result in judged if result.verdict is Verdict.DRIFT], load)
    return list(results.values())


def _truths(measured: Sequence[Measured], ours: Trace, theirs: Trace, truth: Trace) -> dict[Site, Truth]:
    from .verdict.arbiter import ask

    return ask(measured, ours, theirs, truth)


def _introduced(
    replays: Replays, doubted: Sequence[PairResult], measured: Sequence[Measured], graph: Graph
) -> dict[Site, Introduced]:
    """What the reference's program says of the pairs that the one pass over their bytes left in doubt.

    Behind a drift all differ, and the nearest say whether it is the only one: further ones are left to the limits.
    """
    from .judge.introducing import between, introduced_at

    items = {item.pair.site: item for item in measured}
    limits = Limits(items, graph)
    found: dict[Site, Introduced] = {}
    left, drifted = BEHIND_DRIFT, False
    with replays.running():
        for result in doubted:
            site, pair = result.site, result.pair
            left -= pair.count if drifted else 0
            if left < 0:
                break
            own = introduced_at(pair, replays, limits.local(items[site], limits.producers(site)))
            if own is not None:
                drifted |= own.beyond_noise
                by = between(pair.reference.site, replays, shown) if own.beyond_noise else ""
                found[site] = replace(own, between=by)
    return found


def _is_in_doubt(result: PairResult) -> bool:
    """Whether a replay could change what is said of a pair: not of what is given, nor of layouts and calibrations,
    which know more."""
    known = result.reason.startswith(LAYOUT) or CALIBRATED in result.reason
    is_made = result.site.phase not in ("input", "weight")
    return result.measurement is not None and is_made and not known and not _is_clearly_clean(result)


def _is_clearly_clean(result: PairResult) -> bool:
    """Whether the one pass over its bytes has shown that a pair is equal, or as close as any operation leaves it, and
    what it was computed from was found clean."""
    found = result.measurement
    if found is None or result.verdict not in (Verdict.SAME, Verdict.NOISE):
        return False
    if found.bit_equal:
        return True
    unit = roundoff(result.pair.reference.dtype, *(record.dtype for record in result.pair.candidate))
    return found.nonfinite_agree and found.rel_l2 is not None and found.rel_l2 <= least_limit(unit, found.compared)


def _explain(result: PairResult, compared: Compared, replays: Replays | None) -> Cause | None:
    """Why a pair drifts, from two traces; the hypotheses are loaded only when there is something to explain."""
    from .causes.gathering import Runs, gather
    from .causes.hypotheses import explain
    from .causes.table import TABLE

    pairs = {pair.site: pair for pair in compared.alignment.pairs}
    facts: dict[str, Any] = {key: compared.reference.header.get(key) for key in ("batch", "optimizer")}
    facts["candidate_optimizer"] = compared.candidate.header.get("optimizer")
    facts |= compared.alignment.unpaired
    runs = Runs(compared.graph, pairs, compared.reference, compared.candidate, None, facts)
    evidence = gather(result.site, runs, USUAL * (result.limit or 0.0))
    if evidence is None:
        return None
    replayed = None if replays is None else _replayed(evidence, result.pair, replays)
    return explain(replayed or evidence, TABLE)


def _replayed(evidence: Evidence, pair: Pair, replays: Replays) -> Evidence | None:
    """The same drift, with what the reference's program makes of the candidate's inputs as what was expected."""
    from .causes.gathering import with_replay
    from .program.interpreter import NotReplayableError

    site = pair.reference.site
    with replays.running():
        try:
            whole, found = replays.expected(site, own_weights=False), load_recorded(pair, *replays.traces)[1]
            expected = None if whole is None else apply_all(whole, pair.reference_steps)
            if expected is None or expected.shape != found.shape or np.array_equal(expected, found):
                return None
            before = replays.theirs.array(site._replace(phase="weight")) if site.phase == "weight_after" else None
            return with_replay(evidence, expected, found, before, replays.inputs(site))
        except (NotReplayableError, ReconcileError):
            return None


def _globs(given: Globs) -> tuple[str, ...]:
    """One glob alone is a list of one: its letters are none."""
    return (given,) if isinstance(given, str) else tuple(given)


def assert_same(
    reference: Source, candidate: Source, *, truth: Source | None = None,
    map: Map | None = None, only: Globs = (), phases: Globs = (),
    ignore: Globs = (), allow_missing: Globs = (), allow_nan: Globs = (), verify: bool = False, rule: str = "noise",
    abs_floor: float = 1e-4, reference_reduction: str | None = None, candidate_reduction: str | None = None,
    batch: int | None = None, order: str | PathLike[str] | None = None, explain: bool = True,
    advance: Callable[[int], None] | None = None,
) -> Result:  # fmt: skip
    """Raise AssertionError, with the report's first lines, unless the traces are the same up to noise."""
    result = diff(
        reference, candidate, truth=truth, map=map, only=only, phases=phases, ignore=ignore,
        allow_missing=allow_missing, allow_nan=allow_nan, verify=verify, rule=rule, abs_floor=abs_floor, batch=batch,
        order=order, reference_reduction=reference_reduction, candidate_reduction=candidate_reduction, explain=explain,
        advance=advance,
    )  # fmt: skip
    if result.exit_code:
        from .report.text import render

        raise AssertionError(render(result, limit=20))
    return result


def _read_map(given: str | PathLike[str] | dict[str, Json]) -> Mapping:
    from .compare.mapping import parse_map, read_map

    return parse_map(encode(given)) if isinstance(given, dict) else read_map(Path(given))  # JSON is YAML, too


def _open(source: Source, order: str | PathLike[str] | None) -> Trace:
    return source if isinstance(source, Trace) else open_trace(source, order=order)
