"""The reference's step once more: the rule that makes its numbers, and what the candidate's started from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...traces import Array
from ..agreement import Floats, agree, distance, factor, floats, limit, rounded, solve
from ..evidence import Evidence
from .optimizer_choices import CHOICES, DEFAULTS
from .optimizer_steps import Given, Rule, rule_of, take, tells_betas

SCREEN = 4096  # elements that fits look at; steps are elementwise, so any part will do
SHOWN = 1e-5  # relative: what a rate that is read off a state may be off by
PROMISING = 0.15  # of the difference: what a change may leave of it on those elements to be tried on all


@dataclass(frozen=True, slots=True)
class Step:
    """The reference's step, reproduced: its rule, what the candidate's step started from, and which part is judged.

    `some` and `wanted` are a few elements of the start and of what the candidate found, to fit and screen on.
    """

    rule: Rule
    given: Given
    key: str  # `update`, or a name of the state
    some: Given
    wanted: Floats

    def predict(self, **changes: Any) -> Floats:
        """What a changed rule would have made."""
        return take(self.rule.but(**changes), self.given)[self.key]

    def fit(self, name: str, starts: Sequence[float], **changes: Any) -> float:
        """The value of a setting that comes closest to what was found."""
        rule = self.rule.but(**changes)
        return solve(lambda x: take(rule.but(**{name: x}), self.some)[self.key], self.wanted, starts)

    def promises(self, **changes: Any) -> bool:
        """Whether a changed rule explains enough of the few elements to be tried on all of them."""
        made = take(self.rule.but(**changes), self.some)
        if self.key not in made:
            return False
        unchanged = take(self.rule, self.some)[self.key]
        left, whole = (float(np.linalg.norm(one - self.wanted)) for one in (made[self.key], unchanged))
        return left <= PROMISING * whole or whole == 0


def reproduced(evidence: Evidence) -> Step | None:
    """The rule that makes the reference's numbers, or None where none does: then nothing can be said."""
    if evidence.site.phase not in ("weight_after", "optim") or not {"weight", "grad"} <= evidence.inputs.keys():
        return None
    key = "update" if evidence.site.phase == "weight_after" else evidence.site.port.rsplit(".", 1)[-1]
    reference, candidate = _given(evidence.inputs), _given(evidence.candidate_inputs)
    if reference is None or candidate is None or candidate.grad.shape != evidence.found.shape:
        return None
    stride = -(-evidence.found.size // SCREEN) or 1
    expected = floats(evidence.expected).ravel()[::stride]
    declared = _declared(evidence, reference)
    if declared is not None and (unrecorded := _unrecorded(evidence, declared)) is not None:
        reference = candidate = unrecorded
    some = reference.every(stride)
    if declared is not None:
        rules = [declared, *_one_away(declared)]
        if key == "update":  # a schedule inside the optimizer, or clipping: the rate is not what is declared
            rules.append(_with_rate(declared, some, expected))
    else:
        rules = [_with_rate(rule, some, expected) for rule in DEFAULTS] if key == "update" else []
    for rule in rules:
        made = take(rule, some)
        if key in made and agree(evidence, made[key], expected):
            return Step(rule, candidate, key, candidate.every(stride), floats(evidence.found).ravel()[::stride])
    return None


def _declared(evidence: Evidence, given: Given) -> Rule | None:
    """The reference's rule by its settings; Adam's rates, where they have no name there, as its states show them."""
    rule = rule_of(evidence.attrs, class_of(evidence, "optimizer"))
    if rule is None or rule.kind != "adam" or tells_betas(evidence.attrs):
        return rule
    port = evidence.site.port.split(".")[0]
    grad = given.grad + rule.weight_decay * given.weight if not rule.decoupled else given.grad
    for name, key, added in (("beta1", "exp_avg", grad), ("beta2", "exp_avg_sq", grad * grad)):
        site = evidence.site._replace(phase="optim", port=f"{port}.{key}")
        state = evidence.around.reference(site)
        if state is not None and state.shape == added.shape:
            kept = factor(given.before(key) - added, floats(state) - added)
            made = kept * given.before(key) + (1 - kept) * added
            if 0 <= kept < 1 and distance(made, floats(state)) <= max(limit(evidence), SHOWN):
                rule = rule.but(**{name: rounded(kept, SHOWN)})
    return rule


def _unrecorded(evidence: Evidence, rule: Rule) -> Given | None:
    """What a later step starts from where no state was recorded: made once more from the gradients before it.

    The steps before were clean, or this would not be the first drift, so that both sides' state is the same.
    """
    site = evidence.site
    now = _given(evidence.candidate_inputs)
    if site.step == 0 or now is None or now.state:
        return None
    state: dict[str, Floats] = {}
    for step in range(site.step):
        weight, grad = (_at(evidence, step, phases) for phases in (("weight",), ("grad_scaled", "grad")))
        if weight is None or grad is None or not weight.shape == grad.shape == now.grad.shape:
            return None
        made = take(rule, Given(weight, grad, state, step + 1))
        state = {key: item for key, item in made.items() if key != "update"}
    return replace(now, state=state, step=site.step + 1) if state else None


def _at(evidence: Evidence, step: int, phases: Sequence[str]) -> Floats | None:
    """A parameter, or its gradient, at an earlier step of the candidate."""
    port = evidence.site.port.split(".")[0] if evidence.site.phase == "optim" else evidence.site.port
    for phase in phases:
        found = evidence.around.candidate(evidence.site._replace(step=step, phase=phase, port=port))
        if found is not None:
            return floats(found)
    return None


def _one_away(rule: Rule) -> Iterator[Rule]:
    """The forms that the reference may itself have."""
    for _, choices in CHOICES[rule.kind].values():
        for changes in choices:
            if changes_something(rule, changes) and "forgetful" not in changes:
                yield rule.but(**changes)


def _with_rate(rule: Rule, given: Given, expected: Floats) -> Rule:
    times = factor(take(rule, given)["update"], expected)
    return rule.but(lr=rule.lr * times) if np.isfinite(times) else rule


def _given(inputs: Mapping[str, Array]) -> Given | None:
    if not {"weight", "grad"} <= inputs.keys() or inputs["weight"].shape != inputs["grad"].shape:
        return None
    state = {key: floats(item) for key, item in inputs.items() if key not in ("weight", "grad", "step")}
    before = floats(inputs["step"]).item() if "step" in inputs and np.size(inputs["step"]) == 1 else 0
    return Given(floats(inputs["weight"]), floats(inputs["grad"]), state, int(before) + 1)


def class_of(evidence: Evidence, fact: str) -> str:
    """The class of an optimizer, as the headers tell it."""
    said = evidence.around.facts.get(fact) or evidence.around.facts.get("optimizer") or {}
    return str(said.get("class", "")) if isinstance(said, dict) else ""


def changes_something(rule: Rule, changes: dict[str, Any]) -> bool:
    """Whether settings are others than a rule's."""
    return any(getattr(rule, name) != value for name, value in changes.items())
