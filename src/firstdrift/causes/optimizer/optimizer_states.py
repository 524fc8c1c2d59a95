"""State that an optimizer began with, before the first step that was recorded: another parameter's, shared, or none.

The state after a step is what was carried over from before it, and what the gradient adds. The second is known, so
that the first is read off, for every parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...sites import Site
from ...traces import Array
from ..agreement import Floats, distance, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..screening import positions, sampled
from .optimizer_steps import Given, Rule, rule_of, take

SAMPLE = 4096  # elements by which another parameter's state is tried
MOST_READ = 200_000_000  # elements of other states that are looked at
RECORDED = 1e-5  # relative: what records of another precision than the drift's may differ by
TELLING = 1e-3  # of a state, which must have been carried over to be recognised
LINEAR = {
    "adam": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",), "adagrad": ("sum",),
    "rmsprop": ("square_avg", "grad_avg"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Start:
    """How a state after the first step is taken apart; steps are elementwise, so that some elements tell."""

    evidence: Evidence
    rule: Rule
    key: str

    def some(self, array: Array) -> Floats:
        """The elements of a tensor of the drift's shape that are looked at."""
        return sampled(array, positions(self.evidence.found.size, SAMPLE))

    def carried(self, state: Array, weight: Array, grad: Array) -> Floats:
        """What a state holds besides what the gradient added to it."""
        return floats(state) - self.added(weight, grad)

    def added(self, weight: Array, grad: Array) -> Floats:
        """What the gradient adds to a state."""
        empty = Given(floats(weight), floats(grad), {self.key: np.zeros(grad.shape)}, 2)
        return take(self.rule, empty)[self.key]

    def alike(self, a: Floats, b: Floats, state: Array) -> bool:
        """Whether two parts of a state are the same, up to what noise does to the whole of it."""
        return float(np.linalg.norm(a - b)) <= self.tolerance * float(np.linalg.norm(floats(state)))

    def same(self, a: Floats, b: Floats) -> bool:
        """Whether two states are the same."""
        return distance(a, b) <= self.tolerance

    @property
    def tolerance(self) -> float:
        """Relative to a state."""
        return max(limit(self.evidence), RECORDED)


def other_start(evidence: Evidence) -> Iterator[Finding]:
    """The step started from another state than the reference's: another parameter's, one of two, or none."""
    start = _start(evidence)
    if start is None:
        return
    expected, found = start.some(evidence.expected), start.some(evidence.found)
    ours, theirs = (
        start.carried(state, start.some(inputs["weight"]), start.some(inputs["grad"]))
        for state, inputs in ((expected, evidence.inputs), (found, evidence.candidate_inputs))
    )
    if start.alike(ours, theirs, found):
        return
    if _telling(ours, expected) and start.alike(theirs, np.zeros_like(theirs), found):
        sentence = f"the {start.key} starts from zero, where the reference's goes on from a state: it was not restored"
        made = start.added(evidence.candidate_inputs["weight"], evidence.candidate_inputs["grad"])
        yield Finding("uninitialised", sentence, made, 0, {"state": start.key})
    if not _telling(theirs, found):
        return
    for site in _others(evidence, start.key):
        yield from _of_another(start, site, ours, theirs)


def _of_another(start: _Start, site: Site, ours: Floats, theirs: Floats) -> Iterator[Finding]:
    """The state is that of another parameter, or one tensor with it."""
    evidence, name = start.evidence, _name(site)
    expected, found = start.some(evidence.expected), start.some(evidence.found)
    reference, there = evidence.around.reference(site), evidence.around.candidate(site)
    if there is not None and there.size == evidence.found.size and start.same(start.some(there), found):
        if reference is None or not start.same(start.some(reference), expected):
            sentence = f"this state and that of {name} are one tensor, which both parameters update"
            yield Finding("wrong-weight", sentence, None, 0, {"shared_with": name}, residual=0.0)
        return
    before = _carried_at(start, site, candidate=False)
    if before is None or not start.alike(theirs, before, found):
        return
    back = _carried_at(start, site, candidate=True)
    if back is not None and start.alike(back, ours, expected):
        sentence = f"the states of this parameter and of {name} were exchanged before the step"
        yield Finding("weight-swap", sentence, None, 0, {"with": name}, residual=0.0)
    else:
        sentence = f"the step starts from the {start.key} of {name}"
        yield Finding("wrong-weight", sentence, None, 0, {"of": name}, residual=0.0)


def _start(evidence: Evidence) -> _Start | None:
    """How the state of a first step is made; None where the state before it is known, or the rule is not."""
    given = evidence.inputs.keys() & evidence.candidate_inputs.keys()
    if evidence.site.phase != "optim" or not {"weight", "grad"} <= given:
        return None
    key = evidence.site.port.rsplit(".", 1)[-1]
    said = evidence.around.facts.get("optimizer")
    rule = rule_of(evidence.attrs, str(said.get("class", "")) if isinstance(said, dict) else "")
    shapes = {evidence.inputs[one].shape for one in ("weight", "grad")} | {evidence.found.shape}
    known = key in evidence.inputs or not np.isfinite(evidence.found).all() or len(shapes) > 1
    if known or rule is None or key not in LINEAR[rule.kind] or (rule.kind == "sgd" and not rule.momentum):
        return None
    return _Start(evidence, rule, key)


def _telling(carried: Floats, state: Array) -> bool:
    size = float(np.linalg.norm(carried))
    return size > TELLING * float(np.linalg.norm(floats(state))) and len(np.unique(carried)) > 3


def _others(evidence: Evidence, key: str) -> Iterator[Site]:
    """The same state of other parameters of the same shape."""
    site, read = evidence.site, 0
    for other in evidence.around.sites("optim"):
        if other == site or other.step != site.step or other.port.rsplit(".", 1)[-1] != key:
            continue
        state = evidence.around.reference(other)
        read += 0 if state is None else state.size
        if read > MOST_READ:
            return
        if state is not None and state.shape == evidence.found.shape:
            yield other


def _carried_at(start: _Start, site: Site, candidate: bool) -> Floats | None:
    """What another parameter's state carried over, on one side."""
    around = start.evidence.around
    read = around.candidate if candidate else around.reference
    port = site.port.split(".")[0]
    weight = read(site._replace(phase="weight", port=port))
    scaled, raw = (read(site._replace(phase=phase, port=port)) for phase in ("grad_scaled", "grad"))
    state, grad = read(site), raw if scaled is None else scaled
    if state is None or weight is None or grad is None or not state.shape == weight.shape == grad.shape:
        return None
    return start.carried(*(start.some(one) for one in (state, weight, grad)))


def _name(site: Site) -> str:
    parameter = site.port.split(".")[0]
    return f"{site.name}.{parameter}" if site.name else parameter


HYPOTHESES: tuple[Hypothesis, ...] = (other_start,)
