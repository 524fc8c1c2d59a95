"""Two traces in, a result out: `diff`, `compare_pairs` and `assert_same`.

What only some comparisons need is imported where they need it, so that one that finds nothing starts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from math import inf
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.sites import Site, fits_glob
from ..core.strict_json import Json, encode
from ..core.traces import Array, Trace, unchanged
from ..errors import SelectionError
from ..judge.case import Case, Chains, fold
from ..judge.graph import Graph
from ..judge.judging import BY_BYTES, case_of, judge, results_of
from ..judge.jump import by_jump
from ..judge.measure.measuring import measure_pairs
from ..judge.measure.pair_rows import PairRow, row_of_pair
from ..judge.measure.result import Cause, PairResult, Result, Why
from ..judge.measure.storage import as_stored
from ..judge.passes.by_bytes import refuse_nan
from ..judge.passes.weakest import proves
from ..judge.replay.programs import is_torch_here
from ..judge.truth import ask
from ..pair.align import Selection, align
from ..pair.batches import Units
from ..pair.pairs import Alignment, Pair, ReconcileError, apply_all
from ..report.reasons import reason_of
from ..store.reader import verify as compare_checksums
from .open_trace import open_trace
from .outcome import Compared, compose

if TYPE_CHECKING:
    from ..explain.evidence import Evidence
    from ..judge.replay.replays import Replays
    from ..pair.mapping import Mapping

    Map = Mapping | str | PathLike[str] | dict[str, Json]

Source = str | PathLike[str] | Trace
Globs = str | Sequence[str]  # one, or several
LIKELY_RANGE = 0.9  # that what leaves the range of a dtype is the cause
HUGE = 1e30  # what stands for infinity
LIKELY = 0.3  # confidence, below which somebody else is asked
USUAL = 0.1  # of what noise can be at most, it usually is


@dataclass(frozen=True, slots=True)
class Opened:
    """Both sides, opened, and how they line up."""

    reference: Trace
    candidate: Trace
    alignment: Alignment
    meant: tuple[str, ...] = ()  # settings that a map lets differ


@np.errstate(all="ignore")  # any bits may be on record: what is not finite is counted
def align_traces(
    reference: Source, candidate: Source, *, map: Map | None = None,
    only: Globs = (), phases: Globs = (), ignore: Globs = (),
    reference_reduction: str | None = None, candidate_reduction: str | None = None, batch: int | None = None,
    order: str | PathLike[str] | None = None,
) -> Opened:  # fmt: skip
    """Open two traces and pair their sites."""
    of_reference, of_candidate = _open(reference, order), _open(candidate, order)
    if map is None and "probes" in of_reference.header:
        from ..store.formats.npy_steps import check_same_probes

        check_same_probes(of_reference, of_candidate)
    mapping = None if map is None else _read_map(map)
    units = Units.of(of_reference, of_candidate, (reference_reduction, candidate_reduction), batch)
    selection = Selection(_globs(only), _globs(phases), _globs(ignore))
    alignment = align(of_reference, of_candidate, mapping=mapping, selection=selection, units=units)
    meant = () if mapping is None else tuple(mapping.meant)
    pairs = as_stored(alignment.pairs, of_reference, of_candidate)
    return Opened(of_reference, of_candidate, replace(alignment, pairs=pairs), meant)


def compare_pairs(reference: Source, candidate: Source, **options: object) -> list[PairRow]:
    """Return the measurements of every pair in causal order, without a judgement.

    `options` are those of `diff` that select and align. `row.to_dict()` is flat, for a table.
    """
    opened = align_traces(reference, candidate, **options)  # type: ignore[arg-type]
    with unchanged(opened.reference, opened.candidate):
        return list(map(row_of_pair, measure_pairs(opened.alignment.pairs, opened.reference, opened.candidate)))


@np.errstate(all="ignore")  # any bits may be on record: what is not finite is counted
def diff(
    reference: Source, candidate: Source, *, truth: Source | None = None,
    map: Map | None = None, only: Globs = (), phases: Globs = (),
    ignore: Globs = (), allow_missing: Globs = (), allow_nan: Globs = (), verify: bool = False, rule: str = "noise",
    abs_floor: float = 1e-4, reference_reduction: str | None = None, candidate_reduction: str | None = None,
    batch: int | None = None, order: str | PathLike[str] | None = None, explain: bool = True,
    advance: Callable[[int], None] | None = None,
) -> Result:  # fmt: skip
    """Compare two traces and find where they first differ.

    - `truth`: a float64 trace that decides which side is off.
    - `map`: which names belong together; a file or a dict.
    - `only`, `phases`, `ignore`, `allow_missing`, `allow_nan` (names that may hold NaN): globs, one or several.
    - `verify`: compare checksums first. `order`: probe list of npy steps.
    - `rule="jump"`: the rule of training-step traces; differences below `abs_floor` pass.
    - `reference_reduction`, `candidate_reduction` ("mean" or "sum") and `batch`: where a trace does not record them.
    - `explain=False`: do not search for the cause.
    - `advance(n)`: called with the bytes measured.
    """
    if rule not in ("noise", "jump"):
        raise SelectionError(f"there is no rule {rule!r}; choose noise or jump")
    if isinstance(abs_floor, bool) or not isinstance(abs_floor, Real) or not 0 <= abs_floor < inf:
        raise SelectionError(f"abs_floor {abs_floor!r} is no finite number from 0; differences below it pass")
    opened = align_traces(
        reference, candidate, map=map, only=only, phases=phases, ignore=ignore, batch=batch, order=order,
        reference_reduction=reference_reduction, candidate_reduction=candidate_reduction,
    )  # fmt: skip
    arbiter = None if truth is None else _open(truth, order)
    traces = (opened.reference, opened.candidate, *(() if arbiter is None else (arbiter,)))
    may_lack, may_be_nan = _globs(allow_missing), _globs(allow_nan)
    with unchanged(*traces), np.errstate(all="ignore"):  # NaN is for the verdict to tell, and not for numpy
        of_reference, of_candidate, alignment = opened.reference, opened.candidate, opened.alignment
        if verify:
            of_reference = of_reference.with_problems(compare_checksums(of_reference))
            of_candidate = of_candidate.with_problems(compare_checksums(of_candidate))
        measured = list(measure_pairs(alignment.pairs, of_reference, of_candidate, advance or (lambda nbytes: None)))
        graph = Graph(of_reference, alignment.pairs)
        truths = None if arbiter is None else ask(measured, of_reference, of_candidate, arbiter)
        case = case_of(of_reference, of_candidate, alignment, measured, graph, truths)
        if rule == "jump":
            chains = fold(case, {}, (*BY_BYTES, by_jump(abs_floor), refuse_nan(may_be_nan)))
        else:
            case, chains = judge(case, may_be_nan, opened.meant)
        compared = Compared(of_reference, of_candidate, case.alignment, graph)
        return compose(
            with_reasons(results_of(case, chains)), list(case.items.values()), compared,
            lambda site: any(fits_glob(site, glob) for glob in may_lack),
            partial(_explain, compared=compared, case=case) if explain else None,
            _without_torch(case, chains) if rule == "noise" and arbiter is None else [], case.settings,
            None if rule == "jump" else partial(proves, case, chains),
        )  # fmt: skip


def with_reasons(judged: Sequence[PairResult]) -> list[PairResult]:
    """The pairs with what decided their verdicts in English."""
    return [replace(result, reason=reason_of(result)) for result in judged]


def _without_torch(case: Case, chains: Chains) -> list[str]:
    """What the program would have been asked, where it cannot be run."""
    doubts = sum(any(finding.why is Why.DOUBT for finding in chain) for chain in chains.values())
    if case.replays is not None or not doubts or is_torch_here():
        return []
    said = "judged by limits alone; install firstdrift[torch] to run the reference's operations on their inputs"
    return [f"1 pair in doubt was {said}" if doubts == 1 else f"{doubts} pairs in doubt were {said}"]


def _explain(result: PairResult, compared: Compared, case: Case) -> Cause | None:
    """Why a pair drifts, from two traces; the hypotheses are loaded only when there is something to explain."""
    from ..explain.gathering import Runs, gather

    facts: dict[str, Any] = {"batch": compared.reference.header.get("batch"), **compared.alignment.unpaired}
    pairs = {pair.site: pair for pair in compared.alignment.pairs}
    runs = Runs(compared.graph, pairs, compared.reference, compared.candidate, facts)
    evidence = gather(result.site, runs, noise_of(result, case))
    if evidence is None:
        return None
    replayed = None if case.replays is None else replayed_evidence(evidence, result.pair, case.replays)
    return explained_by_both(replayed or evidence, result.pair, case.replays)


@np.errstate(all="ignore")  # any bits may be on record: what is not finite is counted
def explained_by_both(evidence: Evidence, pair: Pair, replays: Replays | None) -> Cause:
    """The cause of a drift: what no program makes, else the smallest change of the reference's program, else what
    relates the tensor to what was expected."""
    from ..explain.relations.hypotheses import explain
    from ..explain.relations.known import GIVEN, IN_PART, TABLE, WIRED

    if not (np.abs(evidence.found) < HUGE).all() and (lost := out_of_range(pair, replays)) is not None:
        return lost
    given = explain(evidence, GIVEN)
    is_of_a_part = "from" in given.parameters  # a factor of some gradients: perhaps another path that is as long
    if _is_clear(given) and not is_of_a_part:
        return given
    changed = None if replays is None else smallest_change(evidence, pair, replays)
    if _is_clear(given) and (changed is None or "path" not in changed.parameters):
        return given
    if changed is None:
        return explain(evidence, TABLE)
    asked = {"scale": IN_PART, "changed-call": WIRED}.get(changed.label)
    more = changed if asked is None else explain(evidence, asked)
    return more if _is_clear(more) else changed


def _is_clear(cause: Cause) -> bool:
    return cause.label != "unknown" and cause.confidence >= LIKELY


def out_of_range(pair: Pair, replays: Replays | None) -> Cause | None:
    """That the candidate's own calls leave the range of their dtype, where the reference's do not."""
    from ..explain.engine import beyond_range
    from ..explain.labels import LABELS

    said = None if replays is None else beyond_range(replays, _made_at(pair.reference.site, replays))
    return None if said is None else Cause("overflow", said, LIKELY_RANGE, LABELS["overflow"].confirm)


def smallest_change(evidence: Evidence, pair: Pair, replays: Replays) -> Cause | None:
    """The smallest change of the reference's program that gives what the candidate has."""
    from ..explain.engine import answer
    from ..explain.one_program.trying import Asked
    from ..explain.telling import cause_of

    site = _made_at(pair.reference.site, replays)
    before = replays.counterparts.array(site._replace(phase="weight")) if site.phase == "weight_after" else None

    def brought(whole: Array) -> Array:
        part = apply_all(whole, pair.reference_steps)
        return part if before is None else np.subtract(part, before)

    found = answer(Asked(site, replays, evidence.found, evidence.noise, brought))
    return None if found is None else cause_of(found, evidence)


def _made_at(site: Site, replays: Replays) -> Site:
    """Where the tensor of a site was made that was only handed on to it, by both sides."""
    first = replays.first(site)
    reference, candidate = replays.counterparts.array(first), replays.counterparts.array(site)
    return first if reference is not None and candidate is not None and np.array_equal(reference, candidate) else site


def noise_of(result: PairResult, case: Case) -> float:
    """What noise explains of a drifting tensor: by the kind of its operation, and at least by draws of its own."""
    from ..explain.one_program.agreement import EXACT

    drawn = [float(finding.facts.get("noise") or 0.0) for finding in result.chain if finding.by == "replay"]
    return max(USUAL * _usual_limit(result, case), *(noise / EXACT for noise in drawn if noise < 1), 0.0)


def _usual_limit(result: PairResult, case: Case) -> float:
    item = case.items.get(result.site)
    if item is None or item.measurement is None:
        return result.limit or 0.0
    if item.update is not None:
        return item.update.limit
    return case.limits.local(item, case.limits.producers(result.site))


def replayed_evidence(evidence: Evidence, pair: Pair, replays: Replays) -> Evidence | None:
    """The same drift, with what the reference's program makes of the candidate's inputs as what was expected."""
    from ..explain.gathering import with_replay
    from ..judge.replay.introducing import found_at
    from ..program.interpreter import NotReplayableError

    site = pair.reference.site
    with replays.running():
        try:
            whole, found = replays.expected(site, own_weights=False), found_at(pair, replays)
            expected = None if whole is None else apply_all(whole, pair.reference_steps)
            if expected is None or found is None or expected.shape != found.shape or np.array_equal(expected, found):
                return None
            before = replays.counterparts.array(site._replace(phase="weight")) if site.phase == "weight_after" else None
            cut = [step for step in pair.reference_steps if step.kind == "slice"]
            inputs = {port: apply_all(array, cut) for port, array in replays.inputs(site).items()}
            return with_replay(evidence, expected, found, before, inputs)
        except (NotReplayableError, ReconcileError):
            return None


def _globs(given: Globs) -> tuple[str, ...]:
    """One glob alone is a list of one: its letters are none."""
    globs = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    for glob in globs:
        if not isinstance(glob, str):
            raise SelectionError(f"{glob!r} is a {type(glob).__qualname__}; give a glob, or several")
    return globs


@wraps(diff, assigned=())
def assert_same(*traces: Any, **options: Any) -> Result:
    """Raise AssertionError with the head of the report unless two traces agree up to noise; options as in `diff`."""
    result = diff(*traces, **options)
    if result.exit_code:
        from ..report.text import render

        raise AssertionError(render(result, limit=20))
    return result


def _read_map(given: Map) -> Mapping:
    from ..pair.mapping import Mapping, parse_map, read_map

    if isinstance(given, Mapping):
        return given
    if isinstance(given, dict):
        return parse_map(encode(given))  # JSON is YAML, too
    if isinstance(given, str | PathLike):
        return read_map(Path(given))
    raise SelectionError(f"map is a {type(given).__qualname__}; give a mapping file, or a dict of what one says")


def _open(source: Source, order: str | PathLike[str] | None) -> Trace:
    return source if isinstance(source, Trace) else open_trace(source, order=order)
