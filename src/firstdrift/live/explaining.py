"""Why the first drift of a check is one: by chance, by a known cause, or by a change of the reference's own code."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..compare.comparison import explained_by_both, noise_of, out_of_range, replayed_evidence
from ..core.sites import Site
from ..explain.gathering import Runs, gather
from ..explain.labels import LABELS
from ..explain.one_program.agreement import distance
from ..explain.relations.screening import LARGE
from ..judge.case import Case
from ..judge.measure.result import Cause, PairResult, Why
from .reseeding import Reseeding, by_chance
from .sides import Side

PRECISE = 1e-9  # relative: noise of a float64 run
FAR = 0.1  # relative: what is further apart was not rounded only
SMALLER = "the reference's code is looked into for up to a million elements"
OF_ROUNDING = frozenset(
    {"accumulator-precision", "dtype-rounding", "overflow", "quantisation", "rope-precision", "rounding-mode"}
)  # labels of what need not show in float64


def explained(
    result: PairResult, reference: Side, candidate: Side, as_run: Case, precise: Case | None, shown: Set[Site],
    reseeding: Reseeding, folder: Path,
) -> Cause | None:  # fmt: skip
    """The cause of a drift, from the run that shows it best."""
    if result.why is Why.UNSTABLE:
        confirm = LABELS["nondeterministic"].confirm
        return Cause("nondeterministic", "two runs of the candidate on the same inputs differ", 0.95, confirm)
    is_shown = result.site in shown
    is_given = result.site.phase in ("weight", "input")
    case = precise if precise is not None and (is_shown or is_given) and result.site in precise.items else as_run
    facts = {
        "target": _array(reference.target), "candidate_target": _array(candidate.target), **case.alignment.unpaired,
    }  # fmt: skip
    pairs = {pair.site: pair for pair in case.alignment.pairs}
    runs = Runs(case.graph, pairs, case.reference, case.candidate, facts)
    evidence = gather(result.site, runs, PRECISE if case is not as_run else noise_of(result, case))
    if evidence is None:
        return None
    is_asked = case.replays is not None and not is_given
    replayed = replayed_evidence(evidence, pairs[result.site], case.replays) if is_asked and case.replays else None
    evidence = replayed or evidence
    rounded = not is_shown and precise is not None and not is_given
    is_open = is_asked and not rounded
    cause = explained_by_both(evidence, pairs[result.site], case.replays if is_open else None)
    if cause.label == "dropout-active":
        return cause
    apart = reseeding.moves(result.site, result.limit or 0.0)
    if apart is not None:
        return by_chance(apart)
    if rounded and cause.label not in OF_ROUNDING:
        is_far = not distance(evidence.expected, evidence.found) < FAR
        lost = out_of_range(pairs[result.site], case.replays) if is_far else None
        if lost is not None:
            return lost
        sentence = "in float64 both sides compute the same; as they run, they round otherwise on the way"
        return Cause("dtype-rounding", sentence, 0.7, LABELS["dtype-rounding"].confirm)
    if cause.label == "unknown" and evidence.found.size > LARGE:
        return replace(cause, confirm=f"{cause.confirm}, or check a smaller batch: {SMALLER}")
    return cause


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) and value.dtype != torch.bfloat16 else None
