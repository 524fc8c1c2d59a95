"""Causes in an optimizer's step: the update of a weight, or the state that it leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...sites import Site
from ..agreement import distance, factor, floats, limit, rounded
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from . import direction_orders, optimizer_states, step_gradients
from .optimizer_choices import CHOICES, LABEL_OF, NUMBERS, WORDS, choice_sentence
from .optimizer_steps import Rule, rule_of, take
from .reproduced_steps import Step, changes_something, class_of, reproduced
from .update_factors import other_rate
from .witnesses import contradicted, ends


def optimizer_variant(evidence: Evidence) -> Iterator[Finding]:
    """Other forms of the same optimizer: eps elsewhere, no bias correction, nesterov, L2 or decoupled decay."""
    step = reproduced(evidence)
    if step is None:
        return
    for label, choices in CHOICES[step.rule.kind].values():
        for changes in choices:
            if (
                changes_something(step.rule, changes)
                and step.promises(**changes)
                and not _contradicted(evidence, step, changes)
            ):
                sentence = choice_sentence(step.rule, changes, step.given.step)
                free = int(_ends(evidence, step, changes))
                yield Finding(label, sentence, step.predict(**changes), free, dict(changes))
    if step.rule.kind == "sgd" and step.rule.momentum:
        damped = {"first_dampened": True, "dampening": step.rule.momentum}
        sentence = (
            f"the velocity takes 1 - momentum = {1 - step.rule.momentum:.6g} of the gradient instead of all of it"
        )
        yield Finding("optimizer-momentum", sentence, step.predict(**damped), 0, damped)
    yield _other_direction(step)


def optimizer_setting(evidence: Evidence) -> Iterator[Finding]:
    """Other values of one setting: as the candidate declares it, or fitted. A rate tells even where no rule does."""
    step = reproduced(evidence)
    if step is None:
        yield from other_rate(evidence)
        return
    declared = rule_of(evidence.candidate_attrs, class_of(evidence, "candidate_optimizer"))
    for name, label in LABEL_OF.items():
        if declared is not None and getattr(declared, name) != getattr(step.rule, name):
            value = getattr(declared, name)
            if declared.kind == step.rule.kind and step.promises(**{name: value}):
                yield _setting(step, name, label, value, 0)
    if step.key == "update":
        told = evidence.attrs.get("lr", step.rule.lr)  # a rate that is not that of the step has other causes too
        yield from _rate(evidence, step) if told == step.rule.lr else other_rate(evidence)
    yield from _fitted(evidence, step)


def _fitted(evidence: Evidence, step: Step) -> Iterator[Finding]:
    """Settings that are numbers, each fitted by itself."""
    for name, (label, starts) in NUMBERS[step.rule.kind].items():
        if step.key not in take(step.rule.but(**{name: starts[-1]}), step.some):
            continue
        fitted = step.fit(name, starts)
        for value in dict.fromkeys((rounded(fitted, 1e-3), fitted)):
            changes = {name: value}
            if value == getattr(step.rule, name) or not 0 <= value < 1 or not step.promises(**changes):
                continue
            if not _contradicted(evidence, step, changes):
                yield _setting(step, name, label, value, 1 + _ends(evidence, step, changes))


def weight_decay(evidence: Evidence) -> Iterator[Finding]:
    """Decay of one side only, or of another strength; on 1-D parameters alone it is a matter of groups."""
    step = reproduced(evidence)
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


def _contradicted(evidence: Evidence, step: Step, changes: Mapping[str, Any]) -> bool:
    """Whether the other states of the step refute a change of its rule."""
    return contradicted(evidence, step.rule, step.rule.but(**changes), step.given)


def _ends(evidence: Evidence, step: Step, changes: Mapping[str, Any]) -> bool:
    """Whether a change of the rule does not hold at the next steps: then it takes one number more, when it ends."""
    return ends(evidence, step.rule, step.rule.but(**changes))


def _setting(step: Step, name: str, label: str, value: Any, free: int) -> Finding:
    reference = getattr(step.rule, name)
    shown = [f"{one:.6g}" if isinstance(one, float) else str(one).lower() for one in (value, reference)]
    sentence = f"{WORDS.get(name, name)} is {shown[0]} instead of {shown[1]}"
    parameters = {name: value, f"reference_{name}": reference}
    return Finding(label, sentence, step.predict(**{name: value}), free, parameters)


def _rate(evidence: Evidence, step: Step) -> Iterator[Finding]:
    """The learning rate scales the whole step, decay included."""
    times = factor(take(step.rule, step.some)[step.key], step.wanted)
    if np.isfinite(times) and times > 0:
        rate = rounded(times * step.rule.lr, max(limit(evidence), 1e-6))
        sentence = f"the learning rate is {rate:.6g} instead of {step.rule.lr:.6g}"
        yield Finding("optimizer-lr", sentence, step.predict(lr=rate), 1, {"lr": rate, "reference_lr": step.rule.lr})


def _other_direction(step: Step) -> Finding:
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
    *step_gradients.HYPOTHESES, *direction_orders.HYPOTHESES,
)  # fmt: skip
