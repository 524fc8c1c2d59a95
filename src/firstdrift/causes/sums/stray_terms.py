"""Terms that one side adds and the other does not have, or adds elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...sites import Site
from ...traces import Array
from ..agreement import floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..layout.placements import spread
from ..screening import positions, sampled
from ..wiring import another_source
from .branches import are_around
from .terms import SAMPLE

MOST_UNPAIRED = 64  # tensors of one side alone that are tried as terms


def unpaired_terms(evidence: Evidence) -> Iterator[Finding]:
    """The candidate lacks a term that it never computed, or adds one that the reference does not have at all."""
    if evidence.site.phase != "fwd" or evidence.expected.size < 4:
        return
    at = positions(evidence.expected.size, SAMPLE)
    difference = sampled(evidence.expected, at) - sampled(evidence.found, at)
    if not np.isfinite(difference).all():
        return
    enough = 2 * limit(evidence) * float(np.linalg.norm(sampled(evidence.expected, at)))
    for which, sign in (("reference_only", 1.0), ("candidate_only", -1.0)):
        read = evidence.around.reference if sign > 0 else evidence.around.candidate
        for site in [one for one in evidence.around.facts.get(which, ()) if _is_output(one, evidence)][-MOST_UNPAIRED:]:
            value = read(site)
            wide = None if value is None or value.dtype.kind != "f" else spread(value, evidence.expected.shape)
            if wide is None or wide.size < 4:
                continue
            term = sampled(np.broadcast_to(wide, evidence.expected.shape), at)
            if float(np.linalg.norm(sign * difference - term)) <= enough < float(np.linalg.norm(term)):
                yield _unpaired(evidence, site, wide, sign)
                return


def extra_term(evidence: Evidence) -> Iterator[Finding]:
    """found is expected with a tensor of the run added, which the reference adds later or not at all."""
    if evidence.site.phase != "fwd" or evidence.expected.size < 4:
        return
    at = positions(evidence.expected.size, SAMPLE)
    wanted = sampled(evidence.found, at) - sampled(evidence.expected, at)
    if not np.isfinite(wanted).all():
        return
    sites = list(evidence.around.sites("fwd"))
    place = sites.index(evidence.site) if evidence.site in sites else 0
    for site, value in another_source(evidence, wanted, at):
        if sites.index(site) >= place or site.name == evidence.site.name:
            continue
        predicted, told = floats(evidence.expected) + floats(value), {"site": list(site)}
        if any(_adds(evidence, later, value, at) for later in sites[place + 1 :]):
            said = f"{site.name} is added before {evidence.site.name} instead of after it"
            yield Finding("op-order", said, predicted, 0, told)
        else:
            yield Finding(
                "residual-source", f"{site.name} is added, where the reference adds nothing", predicted, 1, told
            )
        return


def _adds(evidence: Evidence, later: Site, value: Array, at: NDArray[np.intp]) -> bool:
    """Whether a later tensor was made of what the module of the drift gave, and of this one."""
    producers = evidence.around.producers(later)
    if not any(one.name == evidence.site.name and one.phase == "fwd" for one in producers):
        return False
    others = (evidence.around.reference(one) for one in producers if one.phase == "fwd")
    wanted = sampled(value, at)
    return any(
        one is not None and one.shape == value.shape
        and float(np.linalg.norm(sampled(one, at) - wanted)) <= 2 * limit(evidence) * float(np.linalg.norm(wanted))
        for one in others
    )  # fmt: skip


def _is_output(site: Site, evidence: Evidence) -> bool:
    return (site.step, site.phase) == (evidence.site.step, "fwd") and not site.port.startswith("in.")


def _size(evidence: Evidence, site: Site) -> int:
    value = evidence.around.reference(site)
    return 0 if value is None else value.size


def _unpaired(evidence: Evidence, site: Site, value: Array, sign: float) -> Finding:
    predicted = floats(evidence.expected) - sign * floats(value)
    if sign < 0:
        said = f"{site.name} is added, which the reference does not have"
        return Finding("missing-term", said, predicted, 1, {"term": site.name})
    others = [one for one in evidence.around.producers(evidence.site) if one.phase == "fwd"]
    full = [one for one in others if _size(evidence, one) == value.size]
    skip = value.size == evidence.expected.size and are_around(evidence.around, [site], full)
    label = "missing-residual" if skip else "missing-term"
    return Finding(label, f"{site.name} is not computed and not added", predicted, 0, {"term": site.name})


HYPOTHESES: tuple[Hypothesis, ...] = (unpaired_terms, extra_term)
