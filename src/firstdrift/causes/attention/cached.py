"""An attention that also sees the keys and values of calls before: they are put together, and may be mixed up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...sites import Site
from ...traces import Array
from ..evidence import Evidence
from .claims import Case, Claim
from .roles import role
from .rotary import Floats

KEPT = ("k", "v", "kv")  # what a cache holds
MOST_CALLS = 4096
MOST_SAMPLES = 16  # of which the past may be that of another


def with_past(evidence: Evidence) -> Evidence | None:
    """The evidence with the keys and values of all calls up to this one; None where there is no call before."""
    ours, theirs = dict(evidence.inputs), dict(evidence.candidate_inputs)
    around, tokens = evidence.around, 0
    for site in around.producers(evidence.site) if evidence.site.call else ():
        own = ours.get(site.name)
        if role(site.name) not in KEPT or not 0 < site.call <= MOST_CALLS or own is None or own.ndim != 3:
            continue
        one, other = _joined(evidence, site, False), _joined(evidence, site, True)
        if one is None or other is None:
            return None
        ours[site.name], theirs[site.name], tokens = one, other, one.shape[1]
    if not tokens:
        return None
    ours, theirs = ({name: _shortened(name, value, tokens) for name, value in one.items()} for one in (ours, theirs))
    return replace(evidence, inputs=ours, candidate_inputs=theirs)


def _joined(evidence: Evidence, site: Site, candidate: bool) -> Array | None:
    """What a projection made in every call up to one, after each other."""
    read = evidence.around.candidate if candidate or evidence.replayed else evidence.around.reference
    parts = [read(site._replace(call=call)) for call in range(site.call + 1)]
    whole = [one for one in parts if one is not None and one.ndim == 3]
    if len(whole) < len(parts) or len({(len(one), one.shape[-1]) for one in whole}) > 1:
        return None
    return np.concatenate(whole, axis=1)


def _shortened(name: str, value: Array, tokens: int) -> Array:
    """A mask of all tokens there will be, as far as they are there."""
    return value[:, :tokens] if value.ndim == 2 and value.shape[1] > tokens and not role(name) else value


def past(case: Case) -> Iterator[Claim]:
    """The keys and values of earlier calls, taken from other samples of the batch."""
    operands, kept = case.problem.operands, case.problem.keys - case.problem.queries
    batch = len(operands.q)
    for step in range(1, batch) if kept > 0 and 1 < batch <= MOST_SAMPLES else ():

        def moved(x: Floats, step: int = step) -> Floats:
            return np.concatenate([np.roll(x[:, :kept], step, axis=0), x[:, kept:]], axis=1)

        other = replace(case.problem, operands=replace(operands, k=moved(operands.k), v=moved(operands.v), memory={}))
        said = f"the {kept} keys and values of earlier calls are those of the sample {step} before, in the batch"
        yield Claim("permutation", said, case.settings, {"axis": 0, "shift": step, "kept": kept}, 1, other)


VARIANTS = (past,)
