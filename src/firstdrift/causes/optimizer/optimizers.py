"""Causes in an optimizer's step: the update of a weight, or the state that it leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...sites import Site
from ...traces import Array
from ..agreement import Floats, agree, distance, factor, floats, limit, rounded, solve
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from . import optimizer_states
from .optimizer_choices import CHOICES, DEFAULTS, LABEL_OF, NUMBERS, WORDS, choice_sentence
from .optimizer_steps import Given, Rule, rule_of, take

SCREEN = 4096  # elements that fits look at; steps are elementwise, so any part will do
PROMISING = 0.15  # of the difference: what a change may leave of it on those elements to be tried on all


@dataclass(frozen=True, slots=True)
class _Step:
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


def optimizer_variant(evidence: Evidence) -> Iterator[Finding]:
    """Other forms of the same optimizer: eps elsewhere, no bias correction, nesterov, L2 or decoupled decay."""
    step = _reproduced(evidence)
    if step is None:
        return
    for label, choices in CHOICES[step.rule.kind].values():
        for changes in choices:
            if _changes(step.rule, changes) and step.promises(**changes):
                yield Finding(
                    label,
                    choice_sentence(step.rule, changes, step.given.step),
                    step.predict(**changes),
                    0,
                    dict(changes),
                )
    if step.rule.kind == "sgd" and step.rule.momentum:
        damped = {"first_dampened": True, "dampening": step.rule.momentum}
        sentence = (
            f"the velocity takes 1 - momentum = {1 - step.rule.momentum:.6g} of the gradient instead of all of it"
        )
        yield Finding("optimizer-momentum", sentence, step.predict(**damped), 0, damped)
    yield _other_direction(step)


def optimizer_setting(evidence: Evidence) -> Iterator[Finding]:
    """Other values of one setting: as the candidate declares it, or fitted."""
    step = _reproduced(evidence)
    if step is None:
        return
    declared = rule_of(evidence.candidate_attrs, _class(evidence, "candidate_optimizer"))
    for name, label in LABEL_OF.items():
        if declared is not None and getattr(declared, name) != getattr(step.rule, name):
            value = getattr(declared, name)
            if declared.kind == step.rule.kind and step.promises(**{name: value}):
                yield _setting(step, name, label, value, 0)
    if step.key == "update":
        yield from _rate(evidence, step)
    for name, (label, starts) in NUMBERS[step.rule.kind].items():
        if step.key in take(step.rule.but(**{name: starts[-1]}), step.some):
            fitted = step.fit(name, starts)
            for value in dict.fromkeys((rounded(fitted, 1e-3), fitted)):
                if value != getattr(step.rule, name) and 0 <= value < 1 and step.promises(**{name: value}):
                    yield _setting(step, name, label, value, 1)


def weight_decay(evidence: Evidence) -> Iterator[Finding]:
    """Decay of one side only, or of another strength; on 1-D parameters alone it is a matter of groups."""
    step = _reproduced(evidence)
    if step is None:
        return
    for decoupled in {step.rule.decoupled, True} if not step.rule.weight_decay else {step.rule.decoupled}:
        fitted = step.fit("weight_decay", (0.0, 1e-2, 0.1), decoupled=decoupled)
        for value, free in ((0.0, 0), (rounded(fitted, 1e-2), 1), (fitted, 1)):
            changes = {"weight_decay": value, "decoupled": decoupled}
            if value == step.rule.weight_decay or value < 0 or not step.promises(**changes):
                continue
            label = _decay_label(evidence, step.rule, value)
            sentence = f"the weight decay is {value:.4g} instead of {step.rule.weight_decay:.4g}"
            if label == "weight-decay-norms":
                sentence += " on this 1-D parameter, while matrices decay alike"
            parameters = {"weight_decay": value, "reference_weight_decay": step.rule.weight_decay}
            yield Finding(label, sentence, step.predict(**changes), free, parameters)


def not_updated(evidence: Evidence) -> Iterator[Finding]:
    """A parameter that the optimizer left as it was."""
    statistic = evidence.site.port.startswith("running_")  # which no optimizer updates
    still = evidence.site.phase == "weight_after" and not np.any(evidence.found) and np.any(evidence.expected)
    if still and not statistic and np.any(evidence.candidate_inputs.get("grad", np.ones(1))):
        yield Finding("skipped-op", "the candidate's optimizer did not update this parameter", evidence.found)


def step_count(evidence: Evidence) -> Iterator[Finding]:
    """The count of steps that bias corrections use."""
    if evidence.site.phase != "optim" or not evidence.site.port.endswith("step") or evidence.expected.size != 1:
        return
    expected, found = float(floats(evidence.expected).item()), float(floats(evidence.found).item())
    if abs(found - expected) == 1:
        sentence = f"the optimizer counts this as step {found:g} instead of {expected:g}"
        parameters = {"step": found, "reference_step": expected}
        yield Finding("optimizer-bias-correction", sentence, evidence.found, 0, parameters)


def _reproduced(evidence: Evidence) -> _Step | None:
    """The rule that makes the reference's numbers, or None where none does: then nothing can be said."""
    if evidence.site.phase not in ("weight_after", "optim") or not {"weight", "grad"} <= evidence.inputs.keys():
        return None
    key = "update" if evidence.site.phase == "weight_after" else evidence.site.port.rsplit(".", 1)[-1]
    reference, candidate = _given(evidence.inputs), _given(evidence.candidate_inputs)
    if reference is None or candidate is None or candidate.grad.shape != evidence.found.shape:
        return None
    stride = -(-evidence.found.size // SCREEN) or 1
    expected = floats(evidence.expected).ravel()[::stride]
    declared = rule_of(evidence.attrs, _class(evidence, "optimizer"))
    if declared is not None and (unrecorded := _unrecorded(evidence, declared)) is not None:
        reference = candidate = unrecorded
    some = reference.every(stride)
    if declared is not None:
        rules = [declared, *_one_away(declared)]
    else:
        rules = [_with_rate(rule, some, expected) for rule in DEFAULTS] if key == "update" else []
    for rule in rules:
        made = take(rule, some)
        if key in made and agree(evidence, made[key], expected):
            return _Step(rule, candidate, key, candidate.every(stride), floats(evidence.found).ravel()[::stride])
    return None


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
            if _changes(rule, changes) and "forgetful" not in changes:
                yield rule.but(**changes)


def _with_rate(rule: Rule, given: Given, expected: Floats) -> Rule:
    rate = factor(take(rule, given)["update"], expected)
    return rule.but(lr=rate) if np.isfinite(rate) else rule


def _given(inputs: Mapping[str, Array]) -> Given | None:
    if not {"weight", "grad"} <= inputs.keys() or inputs["weight"].shape != inputs["grad"].shape:
        return None
    state = {key: floats(item) for key, item in inputs.items() if key not in ("weight", "grad", "step")}
    before = floats(inputs["step"]).item() if "step" in inputs and np.size(inputs["step"]) == 1 else 0
    return Given(floats(inputs["weight"]), floats(inputs["grad"]), state, int(before) + 1)


def _class(evidence: Evidence, fact: str) -> str:
    said = evidence.around.facts.get(fact) or evidence.around.facts.get("optimizer") or {}
    return str(said.get("class", "")) if isinstance(said, dict) else ""


def _changes(rule: Rule, changes: dict[str, Any]) -> bool:
    return any(getattr(rule, name) != value for name, value in changes.items())


def _setting(step: _Step, name: str, label: str, value: Any, free: int) -> Finding:
    reference = getattr(step.rule, name)
    shown = [f"{one:.6g}" if isinstance(one, float) else str(one).lower() for one in (value, reference)]
    sentence = f"{WORDS.get(name, name)} is {shown[0]} instead of {shown[1]}"
    parameters = {name: value, f"reference_{name}": reference}
    return Finding(label, sentence, step.predict(**{name: value}), free, parameters)


def _rate(evidence: Evidence, step: _Step) -> Iterator[Finding]:
    """The learning rate scales the whole step, decay included."""
    times = factor(take(step.rule, step.some)[step.key], step.wanted)
    if np.isfinite(times) and times > 0:
        rate = rounded(times * step.rule.lr, max(limit(evidence), 1e-6))
        sentence = f"the learning rate is {rate:.6g} instead of {step.rule.lr:.6g}"
        yield Finding("optimizer-lr", sentence, step.predict(lr=rate), 1, {"lr": rate, "reference_lr": step.rule.lr})


def _other_direction(step: _Step) -> Finding:
    predicted = step.predict(ascending=not step.rule.ascending)
    if step.rule.momentum:
        return Finding("optimizer-momentum", "the velocity has the opposite sign of the gradient", predicted)
    return Finding("optimizer-lr", "the step goes up the gradient instead of down, or the other way round", predicted)


def _decay_label(evidence: Evidence, rule: Rule, value: float) -> str:
    """1-D parameters alone: their group. Everything: the decay is missing, or another."""
    if evidence.found.ndim <= 1 and 0.0 in (value, rule.weight_decay):
        change = rule.lr * abs(value - rule.weight_decay)
        if not any(_moved(evidence, site, change) for site in evidence.around.sites("weight_after")):
            return "weight-decay-norms"
    return "missing-term" if value == 0 else "weight-decay-coupling"


def _moved(evidence: Evidence, site: Site, change: float) -> bool:
    """Whether a matrix differs by as much as this change of decay would make it."""
    a, b = evidence.around.reference(site), evidence.around.candidate(site)
    return a is not None and b is not None and a.ndim > 1 and distance(a, b) > 0.5 * change


HYPOTHESES: tuple[Hypothesis, ...] = (
    optimizer_variant, optimizer_setting, weight_decay, not_updated, step_count, *optimizer_states.HYPOTHESES,
)  # fmt: skip
