"""A gated product whose activation is a module: that is given the other factor, and the gate comes in unactivated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...sites import Site
from ...traces import Array
from ..agreement import floats
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..wiring import agrees

JOINED = {"product": np.multiply, "sum": np.add}


@dataclass(frozen=True, eq=False, slots=True)
class _Factor:
    """A tensor, or one half of one, on both sides."""

    name: str
    whole: Site
    reference: Array
    candidate: Array


def exchanged_factors(evidence: Evidence) -> Iterator[Finding]:
    """found is the factor beside the one that belongs here, which takes its place where both are joined behind."""
    site = evidence.site
    if site.phase != "fwd" or not site.port.startswith("in.") or agrees(evidence, evidence.found, evidence.expected):
        return
    factors = list(_factors(evidence))
    right = [one for one in factors if _alike(evidence, _made(evidence, one), evidence.expected)]
    taken = [one for one in factors if _alike(evidence, one.candidate, evidence.found)]
    for gate in right:
        for other in taken:
            joined = _joined(evidence, gate, other) if gate is not other else None
            if joined is not None:
                label = "swapped-halves" if gate.whole == other.whole else "swapped-operands"
                said = f"{other.name} is read here, and {gate.name} where {other.name} belongs, in the {joined} behind"
                facts = {"taken": other.name, "reference": gate.name}
                yield Finding(label, said, other.candidate, 0, facts)
                return


def _made(evidence: Evidence, factor: _Factor) -> Array:
    return factor.candidate if evidence.replayed else factor.reference  # a replay computes from the candidate's


def _factors(evidence: Evidence) -> Iterator[_Factor]:
    """What the modules returned that stand beside those before the drift, and the halves of what is twice as wide."""
    around, here, shape = evidence.around, evidence.site, evidence.expected.shape
    parents = {_parent(one) for one in around.producers(here) if one.phase == "fwd" and one.port.startswith("out")}
    for site in around.sites("fwd") if parents else ():
        is_output = site.port.startswith("out") and site.name != here.name and _parent(site) in parents
        if not is_output or (site.step, site.sample) != (here.step, here.sample):
            continue
        ours, theirs = around.reference(site), around.candidate(site)
        if ours is None or theirs is None or ours.shape != theirs.shape or ours.shape[:-1] != shape[:-1]:
            continue
        if ours.shape == shape:
            yield _Factor(site.name, site, ours, theirs)
        elif ours.shape[-1] == 2 * shape[-1]:
            for number, half in enumerate((slice(shape[-1]), slice(shape[-1], None))):
                yield _Factor(f"half {number} of {site.name}", site, ours[..., half], theirs[..., half])
            for number in (0, 1):
                every = slice(number, None, 2)
                yield _Factor(f"every other channel of {site.name} from {number} on", site, ours[..., every],
                              theirs[..., every])  # fmt: skip


def _parent(site: Site) -> str:
    return site.name.rpartition(".")[0]


def _joined(evidence: Evidence, gate: _Factor, other: _Factor) -> str | None:
    """How both sides join what the module here returns with a factor: the reference with the one, the candidate with
    the other; None where they do not."""
    around, here = evidence.around, evidence.site
    out = here._replace(port="out")
    ours, theirs = around.reference(out), around.candidate(out)
    if ours is None or theirs is None or ours.shape != evidence.expected.shape or theirs.shape != ours.shape:
        return None
    for site in around.sites("fwd"):
        if not site.port.startswith("in.") or site.step != here.step or site.name == here.name:
            continue
        behind, own = around.reference(site), around.candidate(site)
        if behind is None or own is None or behind.shape != ours.shape or own.shape != ours.shape:
            continue
        for name, join in JOINED.items():
            if _alike(evidence, join(floats(ours), floats(other.reference)), behind) and _alike(
                evidence, join(floats(theirs), floats(gate.candidate)), own
            ):
                return name
    return None


def _alike(evidence: Evidence, one: Array, other: Array) -> bool:
    return one.shape == other.shape and agrees(evidence, one, other)


HYPOTHESES: tuple[Hypothesis, ...] = (exchanged_factors,)
