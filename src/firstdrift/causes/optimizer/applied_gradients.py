"""The gradients that an optimizer's step applied, as the states and the updates that it left tell them.

What an optimizer does to gradients inside its step, such as clipping or scaling them, is not recorded. A state that is
a sum of gradients, or of their squares, or the update of plain gradient descent tells by how much they were multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...sites import Site
from ...strict_json import Json
from ...traces import Array
from ..agreement import Floats, distance, factor, floats, limit
from ..evidence import Evidence
from ..screening import positions, sampled
from .optimizer_steps import Rule, rule_of

SAMPLE = 4096  # elements of a parameter that are looked at; steps are elementwise
MOST_READ = 100_000_000  # elements of gradients that are read for their norms
BLURRED = 1e-3  # of an update: what storing the weight may cost, for the update to count
PARALLEL = 1e-3  # of a state: what a factor may leave of it
CANCELLED = 1e-3  # of the largest: gradients below that may be the rounding errors of a sum that is zero
STORED = 2.0**-24  # relative error of a stored weight
LINEAR = ("momentum_buffer", "exp_avg", "grad_avg")
SQUARES = ("exp_avg_sq", "square_avg", "sum")

Look = Callable[[Site], Array | None]


@dataclass(frozen=True, slots=True)
class Applied:
    """One parameter: the norm of its gradient, and by how much each side multiplied it, by what tells that.

    Nothing tells it where an update is lost in the rounding of a weight.
    """

    site: Site  # of the parameter, after the step
    norm: float
    ours: dict[str, float]
    theirs: dict[str, float]


def applied(evidence: Evidence) -> list[Applied] | None:
    """All parameters of the drift's step; None where gradients differ, or something was no factor of them.

    Gradients that cancel to next to nothing differ by their noise, and tell nothing.
    """
    read, found, sizes, unclear = 0, [], [0.0], [0.0]
    for site in _parameters(evidence):
        a, b = (_gradient(site, look) for look in (evidence.around.reference, evidence.around.candidate))
        if a is None or b is None or a.shape != b.shape or not np.any(a):
            continue
        read += a.size
        if read > MOST_READ:
            return None
        norm = float(np.linalg.norm(floats(a)))
        sizes.append(norm / float(np.sqrt(a.size)))
        one = _of_both(evidence, site, a, b, norm)
        if one is None:
            unclear.append(sizes[-1])
        else:
            found.append(one)
    return found if max(unclear) <= CANCELLED * max(sizes) else None


def _of_both(evidence: Evidence, site: Site, ours: Array, theirs: Array, norm: float) -> Applied | None:
    """One parameter; None where the gradients differ, or what was made of them is no factor."""
    if distance(ours, theirs) > max(limit(evidence), PARALLEL):
        return None
    around = evidence.around
    made = _factors(evidence, site, around.reference, ours, _rule(evidence, evidence.attrs))
    own = _rule(evidence, evidence.candidate_attrs or evidence.attrs)
    found = _factors(evidence, site, around.candidate, theirs, own)
    return None if made is None or found is None else Applied(site, norm, made, found)


def judged(site: Site) -> str:
    """What a drift is about: a state by its name, or the update."""
    return "update" if site.phase == "weight_after" else site.port.rpartition(".")[2]


def with_factors(evidence: Evidence, ours: float, theirs: float) -> Floats | None:
    """What the drift's tensor would be, had its gradient been multiplied by the candidate's factor."""
    gradient, key = evidence.candidate_inputs.get("grad"), judged(evidence.site)
    if gradient is None or gradient.shape != evidence.expected.shape:
        return None
    rule, power = _rule(evidence, evidence.attrs), 2 if key in SQUARES else 1
    if key not in evidence.inputs and (rule.decoupled or not rule.weight_decay):  # there is nothing but the gradient
        return floats(evidence.expected) * (theirs / ours) ** power
    return floats(evidence.expected) + (theirs**power - ours**power) * _unit(rule, key) * floats(gradient) ** power


def _parameters(evidence: Evidence) -> Iterator[Site]:
    for site in evidence.around.sites("weight_after"):
        if site.step == evidence.site.step and not site.port.startswith("running_"):
            yield site


def _gradient(site: Site, look: Look) -> Array | None:
    scaled = look(site._replace(phase="grad_scaled"))
    return look(site._replace(phase="grad")) if scaled is None else scaled


def _rule(evidence: Evidence, attrs: Mapping[str, Json]) -> Rule:
    said = evidence.around.facts.get("optimizer")
    return rule_of(attrs, str(said.get("class", "")) if isinstance(said, dict) else "") or Rule("sgd")


def _factors(evidence: Evidence, site: Site, look: Look, gradient: Array, rule: Rule) -> dict[str, float] | None:
    """By how much a gradient was multiplied, by every state; by the update where there is no state."""
    at = positions(gradient.size, SAMPLE)
    slope, weight = sampled(gradient, at), look(site._replace(phase="weight"))
    decay = np.zeros_like(slope)
    if rule.weight_decay and not rule.decoupled and weight is not None:
        decay = rule.weight_decay * sampled(weight, at)
    found: dict[str, float] = {}
    for key in (*LINEAR, *SQUARES):
        state = look(site._replace(phase="optim", port=f"{site.port}.{key}"))
        if state is None or state.shape != gradient.shape:
            continue
        before = look(site._replace(phase="optim", port=f"{site.port}.{key}", step=site.step - 1))
        added = sampled(state, at) / _unit(rule, key)
        if before is not None:
            added = added - _kept(rule, key) * sampled(before, at) / _unit(rule, key)
        times = _times(added, slope, decay, key in SQUARES)
        if times is None:
            return None
        found[key] = times
    if found or _has_state(evidence, site):
        return found
    return _of_update(look(site), weight, at, slope, decay, rule)


def _of_update(
    after: Array | None, weight: Array | None, at: NDArray[np.intp], slope: Floats, decay: Floats, rule: Rule
) -> dict[str, float] | None:
    if after is None or weight is None or after.shape != weight.shape or not rule.lr:
        return {}
    step = floats(after) - floats(weight)
    if STORED * np.linalg.norm(floats(weight)) > BLURRED * np.linalg.norm(step):
        return {}  # which says too little
    times = _times(sampled(step, at) / -rule.lr, slope, decay, False)
    return None if times is None else {"update": times}


def _times(added: Floats, slope: Floats, decay: Floats, squared: bool) -> float | None:
    """The factor of a gradient in what was added to a state, beside the decay, which is not multiplied."""
    if not np.any(slope) or not np.isfinite(added).all():
        return None
    if squared:
        times = factor(slope * slope, added) if not decay.any() else float("nan")
        return float(np.sqrt(times)) if times > 0 and distance(times * slope * slope, added) <= PARALLEL else None
    times = factor(slope, added - decay)
    return times if times > 0 and distance(times * slope, added - decay) <= PARALLEL else None


def _has_state(evidence: Evidence, site: Site) -> bool:
    """Whether an optimizer keeps more of a parameter than a count of steps."""
    start = f"{site.port}."
    return any(
        (one.step, one.name) == (site.step, site.name) and one.port.startswith(start) and judged(one) != "step"
        for one in evidence.around.sites("optim")
    )


def _unit(rule: Rule, key: str) -> float:
    """How much of a gradient, or of its square, a step adds to a state."""
    units = {"exp_avg": 1 - rule.beta1, "exp_avg_sq": 1 - rule.beta2, "square_avg": 1 - rule.beta2}
    units |= {"grad_avg": 1 - rule.beta2, "update": -rule.lr}
    return units.get(key, 1.0) or 1.0


def _kept(rule: Rule, key: str) -> float:
    """How much of a state before the step it keeps."""
    kept = {"momentum_buffer": rule.momentum, "sum": 1.0}
    return kept[key] if key in kept else 1 - _unit(rule, key)
