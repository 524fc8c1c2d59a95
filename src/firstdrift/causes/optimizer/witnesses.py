"""What else a changed rule would have changed: other states of the same step, and the steps after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ...sites import Site
from ...traces import Array
from ..agreement import Floats, distance, floats, limit
from ..evidence import Evidence
from ..screening import positions, sampled
from .optimizer_steps import Given, Rule, take

SAMPLE = 4096  # elements that are looked at; steps are elementwise
LATER = 3  # steps after the drift that are asked
RECORDED = 1e-4  # relative: what another tensor may differ by and still agree
STORED = 2.0**-22  # relative error of a weight that was stored before and after a step

Look = Callable[[Site], Array | None]
Places = NDArray[np.intp]


def contradicted(evidence: Evidence, rule: Rule, changed: Rule, given: Given) -> bool:
    """Whether other states of the step, or its update, are not what a changed rule makes of the same gradient."""
    if evidence.site.phase != "optim":
        return False  # what comes before the update agrees
    at = positions(given.grad.size, SAMPLE)
    some = _at(given, at)
    before, after = take(rule, some), take(changed, some)
    own = evidence.site.port.rpartition(".")[2]
    for key in before.keys() & after.keys() - {own}:
        ours, theirs = (_left(evidence.site, key, look, at) for look in _sides(evidence))
        if ours is None or theirs is None:
            continue
        tolerance = max(limit(evidence), RECORDED, _rounding(evidence, key, theirs, at))
        if distance(before[key], after[key]) <= tolerance:
            wrong = distance(ours, theirs) > tolerance
        else:  # only where the reference is understood, something can be said of the candidate
            wrong = distance(ours, before[key]) <= tolerance < distance(theirs, after[key])
        if wrong:
            return True
    return False


def ends(evidence: Evidence, rule: Rule, changed: Rule) -> bool:
    """Whether the steps after the drift are not those of a changed rule, although the reference's are of its own."""
    for step in range(evidence.site.step + 1, evidence.site.step + 1 + LATER):
        ours, theirs = (
            _missed(evidence, step, look, one) for look, one in zip(_sides(evidence), (rule, changed), strict=True)
        )
        if ours is None or theirs is None:
            return False
        if ours <= 1 < theirs:
            return True
    return False


def _missed(evidence: Evidence, step: int, look: Look, rule: Rule) -> float | None:
    """How far a rule misses one side's update at a later step, in tolerances; None where it is not recorded."""
    site = _parameter(evidence.site)._replace(step=step)
    gradient = _gradient(site, look)
    weight = look(site._replace(phase="weight"))
    if gradient is None or weight is None or gradient.shape != weight.shape:
        return None
    at = positions(gradient.size, SAMPLE)
    found = _left(site, "update", look, at)
    if found is None:
        return None
    state = dict(_states(evidence, site._replace(step=step - 1), look))
    count = floats(state.pop("step")).item() if np.size(state.get("step", ())) == 1 else step
    kept = {key: sampled(item, at) for key, item in state.items() if item.shape == gradient.shape}
    made = take(rule, Given(sampled(weight, at), sampled(gradient, at), kept, int(count) + 1))["update"]
    size = float(np.linalg.norm(found))
    stored = STORED * float(np.linalg.norm(sampled(weight, at))) / size if size else 0.0
    return distance(made, found) / max(limit(evidence), RECORDED, 4 * stored)


def _states(evidence: Evidence, site: Site, look: Look) -> Iterator[tuple[str, Array]]:
    for other in evidence.around.sites("optim"):
        name, _, key = other.port.partition(".")
        if (other.step, other.name, name) == (site.step, site.name, site.port) and (item := look(other)) is not None:
            yield key, item


def _left(site: Site, key: str, look: Look, at: Places) -> Floats | None:
    """A state after a step, or the update of the weight."""
    parameter = _parameter(site)
    if key != "update":
        state = look(parameter._replace(phase="optim", port=f"{parameter.port}.{key}"))
        return sampled(state, at) if state is not None and state.size > at.max(initial=0) else None
    before, after = look(parameter._replace(phase="weight")), look(parameter)
    if before is None or after is None or before.shape != after.shape or before.size <= at.max(initial=0):
        return None
    return sampled(after, at) - sampled(before, at)


def _rounding(evidence: Evidence, key: str, update: Floats, at: Places) -> float:
    weight = evidence.candidate_inputs.get("weight")
    size = float(np.linalg.norm(update))
    if key != "update" or weight is None or not size:
        return 0.0
    return 4 * STORED * float(np.linalg.norm(sampled(weight, at))) / size


def _parameter(site: Site) -> Site:
    """The parameter that a state belongs to, after the step."""
    return site._replace(phase="weight_after", port=site.port.split(".")[0]) if site.phase == "optim" else site


def _gradient(site: Site, look: Look) -> Array | None:
    scaled = look(site._replace(phase="grad_scaled"))
    return look(site._replace(phase="grad")) if scaled is None else scaled


def _sides(evidence: Evidence) -> tuple[Look, Look]:
    return evidence.around.reference, evidence.around.candidate


def _at(given: Given, at: Places) -> Given:
    state = {key: sampled(item, at) for key, item in given.state.items() if item.shape == given.grad.shape}
    return Given(sampled(given.weight, at), sampled(given.grad, at), state, given.step)
