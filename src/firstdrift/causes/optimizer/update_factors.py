"""Updates that are a factor of the reference's, whatever the optimizer: a learning rate, of all parameters or some."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...sites import Site
from ..agreement import agree, factor, floats, limit, rounded
from ..evidence import Evidence
from ..hypotheses import Finding
from ..screening import positions, sampled

SAMPLE = 4096  # elements of an update that tell its factor
MOST_COMPARED = 48  # parameters that are asked for their factor
ALIKE = 1e-3  # relative: factors that are the same
STORED = 2.0**-24  # relative error of a stored weight


def other_rate(evidence: Evidence) -> Iterator[Finding]:
    """The update is a factor of the reference's, and every other one is, or is as it should be."""
    if evidence.site.phase != "weight_after" or evidence.site.port.startswith("running_") or evidence.found.size < 2:
        return
    times = factor(evidence.expected, evidence.found)
    if not np.isfinite(times) or times <= 0 or abs(times - 1) <= limit(evidence):
        return
    predicted = times * floats(evidence.expected)
    if not agree(evidence, predicted, evidence.found):
        return
    others = [one for site in _spread(evidence) if (one := _factor(evidence, site)) is not None]
    scaled = [abs(one / times - 1) <= slack for one, slack in others]
    if not all(same or abs(one - 1) <= slack for same, (one, slack) in zip(scaled, others, strict=True)):
        return  # every parameter has a factor of its own, which is no rate
    which = "all parameters" if all(scaled) else "some parameters, of a group"
    value = rounded(times, max(limit(evidence), 1e-6))
    sentence = f"the updates of {which} are {value:.6g} times the reference's: the learning rate, or its schedule"
    yield Finding("optimizer-lr", sentence, predicted, 1, {"factor": value})


def _spread(evidence: Evidence) -> list[Site]:
    """Some parameters of the step, from the first to the last."""
    found = [
        site
        for site in evidence.around.sites("weight_after")
        if site.step == evidence.site.step and not site.port.startswith("running_")
    ]
    return found[:: -(-len(found) // MOST_COMPARED) or 1]


def _factor(evidence: Evidence, site: Site) -> tuple[float, float] | None:
    """The factor of an update and by how much storing the weight may blur it; None where little is left of it."""
    around = evidence.around
    places = site._replace(phase="weight"), site
    tensors = [look(place) for look in (around.reference, around.candidate) for place in places]
    known = [one for one in tensors if one is not None]
    if len(known) < len(tensors) or len({one.shape for one in known}) > 1:
        return None
    at = positions(known[0].size, SAMPLE)
    before, after, own, moved = (sampled(one, at) for one in known)
    ours, theirs = after - before, moved - own
    smallest = min(float(np.linalg.norm(ours)), float(np.linalg.norm(theirs)))
    blur = 4 * STORED * float(np.linalg.norm(before)) / smallest if smallest else np.inf
    return (factor(ours, theirs), ALIKE + blur) if blur < 0.1 else None
