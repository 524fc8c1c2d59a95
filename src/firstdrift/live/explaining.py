"""Why the first drift of a check is one: by chance, by a known cause, or by a change of the reference's own code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

import torch

from ..causes.gathering import Runs, gather
from ..causes.hypotheses import explain
from ..causes.labels import LABELS
from ..causes.screening import LARGE
from ..causes.table import TABLE
from ..compare.align import align
from ..compare.result import Cause, PairResult
from ..outcome import Compared
from ..sites import Site
from ..traces import Trace
from ..verdict.introduced import Introduced
from .examining import AS_RUN, FLOAT32, Examination
from .forcing import Plan
from .reseeding import Reseeding, by_chance
from .rewriting.search import rewritten

SMALLER = "the reference's code is looked into for up to a million elements"
UNSTABLE = "two runs of the candidate are not the same"
OF_ROUNDING = frozenset(
    {"accumulator-precision", "dtype-rounding", "overflow", "quantisation", "rope-precision", "rounding-mode"}
)  # labels of what need not show in float64


def explained(
    result: PairResult, examination: Examination, compared: Compared, found: Mapping[Site, Introduced],
    reseeding: Reseeding,
) -> Cause | None:  # fmt: skip
    """The cause of a drift, from the run that shows it best."""
    if result.reason.startswith(UNSTABLE):
        confirm = LABELS["nondeterministic"].confirm
        return Cause("nondeterministic", "two runs of the candidate on the same inputs differ", 0.95, confirm)
    own = found.get(result.site)
    precise = examination.precise
    shown = own is not None and precise is not None and own.how == precise.how
    facts = {
        "target": _array(examination.reference.target), "candidate_target": _array(examination.candidate.target),
        "optimizer": _header(compared.reference, "optimizer"),
        "candidate_optimizer": _header(compared.candidate, "optimizer"), **compared.alignment.unpaired,
    }  # fmt: skip
    pairs = compared.alignment.pairs
    ours, theirs = compared.reference, compared.candidate
    replayed: Trace | None = examination.as_run.exact
    if (shown or result.site.phase == "weight") and precise is not None and examination.precise_reference is not None:
        ours, theirs, replayed = examination.precise_reference, precise.candidate, precise.exact
        pairs = align(ours, theirs, prefixes=False).pairs
    if result.site.phase in ("weight", "input"):
        replayed = None
    runs = Runs(compared.graph, {pair.site: pair for pair in pairs}, ours, theirs, replayed, facts)
    noise = 1e-9 if shown else (own.limit if own is not None else result.limit or 0.0)
    evidence = gather(result.site, runs, noise)
    if evidence is None:
        return None
    rounded = own is not None and _is_rounding(own, examination, result.site)
    changes = rewritten(examination.reference.as_precise(), theirs, examination.plan or Plan(), examination.folder)
    cause = explain(evidence, TABLE, (changes,) if replayed is not None and not rounded else ())
    if cause.label == "dropout-active":
        return cause
    apart = reseeding.moves(result.site, result.limit or 0.0)
    if apart is not None:
        return by_chance(apart)
    if rounded and cause.label not in OF_ROUNDING:
        sentence = "in float64 both sides compute the same; as they run, they round otherwise on the way"
        return Cause("dtype-rounding", sentence, 0.7, LABELS["dtype-rounding"].confirm)
    if cause.label == "unknown" and evidence.found.size > LARGE:
        return replace(cause, confirm=f"{cause.confirm}, or check a smaller batch: {SMALLER}")
    return cause


def _is_rounding(own: Introduced, examination: Examination, site: Site) -> bool:
    """Whether what a site's operation adds is not there in float64: then no other formula explains it."""
    if examination.precise is None or own.how != AS_RUN or not own.beyond_noise:
        return False
    precise = examination.precise.introduced_at(site, FLOAT32)
    return precise is not None and not precise.beyond_noise and isfinite(own.error)


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) and value.dtype != torch.bfloat16 else None


def _header(trace: Trace, key: str) -> Any:
    found = trace.header.get(key)
    return found[0] if isinstance(found, list) and found else found
