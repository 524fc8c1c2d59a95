"""What `fd.check` does: both sides traced, as they run and in float64, matched, judged as two traces are, explained."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ..capture.torch.names import plain_name
from ..compare.comparison import with_reasons
from ..compare.outcome import Compared, compose
from ..core.dtypes import UNIT_ROUNDOFF
from ..core.sites import Site
from ..core.traces import Trace
from ..errors import CaptureError, FirstdriftError
from ..judge.case import Case, Chain
from ..judge.graph import Graph
from ..judge.judging import case_of, judge, results_of
from ..judge.measure.measuring import measure_pairs
from ..judge.measure.result import CLEAN, DRIFTS, Finding, PairResult, Result, Verdict, Why
from ..judge.measure.storage import as_stored
from ..judge.passes.weakest import proves
from ..judge.replay.replays import Own
from ..judge.truth import ask
from ..kernels import measure
from ..pair.align import align
from ..program.written.read_program import read_program
from .copying import copied_model
from .explaining import explained
from .lost_parameters import lost_parameters
from .matching import Names, match
from .reseeding import STABLE, Reseeding, arrays_of
from .sides import Side, record

# What was proven of both sides as they run, with their weights as they store them, stands in float64, too.
EXCEPTED = frozenset({Why.GAUGE, Why.SAME_FUNCTION, Why.FILL, Why.NEAR_TIE, Why.DECLARED_PRECISION})
FAR = 1e3 * UNIT_ROUNDOFF["f32"]  # an error of float32 that its own rounding does not leave
SHOWN = frozenset({  # drifts that a float64 run may add: what is given is the same there
    Why.INTRODUCED, Why.NON_FINITE, Why.OTHER_INTEGERS, Why.SHORTER_CALLS, Why.SHORTER_GRID, Why.BEYOND_LIMIT,
})  # fmt: skip
NO_ROUNDING = SHOWN - {Why.SHORTER_CALLS, Why.SHORTER_GRID}  # what no precision that was asked for excuses


def check_sides(
    reference: Side, candidate: Side, name_map: Mapping[str, str] | None, load: Any, explain: bool
) -> Result:
    """Compare copies of two live implementations; the arguments are those of `fd.check`."""
    if type(reference.steps) is not int or reference.steps < 1:
        raise CaptureError(f"steps {reference.steps!r} is not a whole number from 1; say how many steps to compare")
    if reference.optimizer is not None and reference.loss_fn is None:
        raise CaptureError("an optimizer needs gradients; give loss_fn too")
    one, other = (replace(side, model=copied_model(side.model)) for side in (reference, candidate))
    _load(load, one.model, other.model)
    with tempfile.TemporaryDirectory(prefix="firstdrift-") as folder, np.errstate(all="ignore"):
        return _checked(one, other, Path(folder), name_map, explain)


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
    of_reference, of_candidate = reference.state_dict(), candidate.state_dict()
    lacking = {"candidate": of_reference.keys() - of_candidate.keys()}
    lacking["reference"] = of_candidate.keys() - of_reference.keys()
    for side, names in lacking.items():
        if names:
            some = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise CaptureError(
                f'load="reference" goes by names, and the {side} has no {some}; give a function of both models, which '
                "may call fd.load_weights with a map"
            )
    try:
        candidate.load_state_dict(of_reference)
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


@dataclass(frozen=True)
class Judged:
    """Two traces, judged: as both sides ran, or in float64."""

    case: Case
    chains: Mapping[Site, Chain]


def _checked(
    reference: Side, candidate: Side, folder: Path, name_map: Mapping[str, str] | None, explain: bool
) -> Result:
    of_reference = _recorded(reference, "reference", folder)
    raw = _recorded(candidate, "candidate", folder)
    known = [[plain_name(name) for name, _ in side.model.named_modules()] for side in (reference, candidate)]
    names = match(of_reference, raw, name_map, (known[0], known[1]))
    as_run = _judged(of_reference, raw, names, 0.0)
    notes: list[str] = []
    precise = _in_float64(reference, candidate, names, folder, notes)
    as_run = _with_suspects(as_run, reference, folder)
    results = with_reasons(_merged(as_run, precise))
    results = with_reasons(_with_repeats(results, names, raw, record(candidate, folder / "again", program=False)))
    case = as_run.case
    compared = Compared(case.reference, case.candidate, case.alignment, case.graph)
    reseeding = Reseeding(reference, candidate, names, of_reference, names.renamed(raw), folder)
    exact, chains = (None, {}) if precise is None else (precise.case, precise.chains)
    shown = frozenset(site for site, chain in chains.items() if chain[-1].verdict in DRIFTS)  # in float64
    learned = {plain_name(name) for name, _ in reference.model.named_parameters()}
    lost = lost_parameters(case.alignment, case.reference, case.candidate, learned, as_run.chains)
    why = partial(
        explained, reference=reference, candidate=candidate, as_run=case, precise=exact,
        shown=shown, reseeding=reseeding, folder=folder,
    )  # fmt: skip
    if case.alignment.reference_only:
        notes.append("what has no counterpart was replayed too, and shows at the next site that has one")
    notes += _matched(names.how)
    return compose(
        results, list(case.items.values()), compared,
        lambda site: site not in lost and site.name not in names.refuted, why if explain else None, notes,
        case.settings, partial(proves, case, as_run.chains),
    )  # fmt: skip


@np.errstate(all="ignore")  # any bits may be on record: what is not finite is counted
def _judged(reference: Trace, raw: Trace, names: Names, finest: float) -> Judged:
    """One pair of traces, judged as `fd.diff` judges them."""
    candidate = names.renamed(raw)
    aligned = align(reference, candidate, prefixes=False, refuted=names.refuted)
    alignment = replace(aligned, pairs=as_stored(aligned.pairs, reference, candidate))
    measured = list(measure_pairs(alignment.pairs, reference, candidate))
    program = read_program(raw)
    own = None if program is None else Own(program, raw, {names.site(site.site): site.site for site in raw})
    case = case_of(reference, candidate, alignment, measured, Graph(reference, alignment.pairs), finest=finest)
    with np.errstate(all="ignore"):
        return Judged(*judge(replace(case, own=own)))


def _in_float64(
    reference: Side, candidate: Side, names: Names, folder: Path, notes: list[str]
) -> Judged | None:  # fmt: skip
    """Both sides once more in float64, where rounding hides next to nothing: what differs there is another formula.
    None where a side cannot be run so."""
    try:
        of_reference = record(reference.as_precise(), folder / "float64-reference", program=True)
        raw = record(candidate.as_precise(), folder / "float64-candidate", program=True)
    except FirstdriftError:
        raise
    except Exception as error:  # whatever a model does that float64 cannot do
        why = f"{type(error).__name__}: {error}"
        notes.append(f"one side cannot be run in float64 ({why}); the two were compared as they ran")
        return None
    return _judged(of_reference, raw, names, UNIT_ROUNDOFF["f32"])


def _with_suspects(as_run: Judged, reference: Side, folder: Path) -> Judged:
    """Where both agree, but for what the reference casts to a shorter format on its way, and the candidate does not: it
    is the reference that is off, if it is further from its own float64 run without these casts."""
    case = as_run.case
    clean = [item for site, item in case.items.items() if as_run.chains[site][-1].verdict in CLEAN]
    far = [item for item in clean if item.measurement is not None and (item.measurement.rel_l2 or 0.0) > FAR]
    far = [item for item in far if case.unit(item.pair) <= UNIT_ROUNDOFF["f32"]]
    if not far:
        return as_run
    try:
        exact = record(reference.as_exact(), folder / "exact-reference", program=False)
    except Exception:  # whatever a model does that float64 cannot do
        return as_run
    truths = ask(far, case.reference, case.candidate, exact)
    chains = dict(as_run.chains)
    for site, truth in truths.items():
        if truth.reference_suspect and truth.finding.verdict in CLEAN:
            chains[site] = (*chains[site], truth.finding)
    return replace(as_run, chains=chains)


def _merged(as_run: Judged, precise: Judged | None) -> list[PairResult]:
    """What was found as both ran, and what only float64 shows."""
    if precise is None:
        return results_of(as_run.case, as_run.chains)
    chains = dict(as_run.chains)
    for site, chain in as_run.chains.items():
        more = _more(chain, precise.chains.get(site, ()))
        if more is not None:
            chains[site] = (*chain, more)
        if chains[site][-1].verdict in DRIFTS and _draws_otherwise(site, as_run.case, precise.case):
            chains[site] = (*chains[site], Finding("float64", Verdict.INCONCLUSIVE, Why.OTHER_DRAWS))
    return results_of(as_run.case, chains)


def _draws_otherwise(site: Site, as_run: Case, precise: Case) -> bool:
    """Whether the reference itself draws other numbers in float64 than as it runs: what the candidate drew is then
    nobody's fault, and hides what else it does."""
    replays = as_run.replays
    if replays is None or site not in as_run.items or site not in precise.items:
        return False
    asked = as_run.items[site].pair.reference.site
    if not replays.draws(asked):
        return False
    reference, exact = as_run.reference.array(asked), precise.reference.array(precise.items[site].pair.reference.site)
    return reference.shape == exact.shape and not (measure(exact, reference, full=False).rel_l2 or 0.0) <= FAR


def _more(chain: Chain, precise: Chain) -> Finding | None:
    """What a float64 run adds to what was found: a drift that noise hid, or that nothing is hidden."""
    if not precise:
        return None
    last, other = chain[-1], precise[-1]
    is_rounded = last.why is Why.DECLARED_PRECISION and other.why in NO_ROUNDING
    if last.why in EXCEPTED and not is_rounded:
        return None
    if other.verdict in DRIFTS and last.verdict not in DRIFTS and other.why in SHOWN:
        return Finding("float64", other.verdict, other.why, {**other.facts, "precise": True})
    is_open = last.verdict is Verdict.INCONCLUSIVE and last.why is not Why.MAYBE_FLIPPED
    if is_open and other.verdict in CLEAN:
        facts = {"error": other.facts.get("error"), "proof": "run"}
        return Finding("float64", Verdict.NOISE, Why.SAME_IN_FLOAT64, facts)
    return None


def _with_repeats(results: Sequence[PairResult], names: Names, once: Trace, again: Trace) -> list[PairResult]:
    """A candidate that computes something else every time has no verdict but this one."""
    first, second = names.renamed(once), names.renamed(again)
    for number, result in enumerate(results):
        both = arrays_of(first, second, result.site)
        if both is None or result.measurement is None:
            continue
        apart = measure(*both)
        if not apart.bit_equal and not (apart.rel_l2 or 0.0) <= max(result.limit or 0.0, STABLE):
            finding = Finding("repeats", Verdict.DRIFT, Why.UNSTABLE, {"error": apart.rel_l2 or 0.0})
            by = result.introduced_by or result.site.name or "the model itself"
            moved = replace(result, verdict=Verdict.DRIFT, introduced_by=by, chain=(*result.chain, finding))
            return [*results[:number], moved, *results[number + 1 :]]
    return list(results)


def _matched(how: Mapping[str, str]) -> list[str]:
    words = {"weights": "their weights", "numbers": "what they return", "structure": "structure and order"}
    counted = Counter(kind for kind in how.values() if kind != "name")
    return [f"{count} modules were matched by {words.get(kind, 'the map')}" for kind, count in counted.items()]
