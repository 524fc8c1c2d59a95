"""The steps of common optimizers in float64, with the ways in which implementations differ as settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...strict_json import Json
from ..agreement import Floats

BETAS = (("beta1", "beta2"), ("b1", "b2"), ("beta_1", "beta_2"))  # as others than torch call them
AFTER_ROOT, IN_ROOT, BEFORE_CORRECTION = "after the root", "inside the root", "before the bias correction"


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer with its settings. Fields that a kind does not use are ignored by it."""

    kind: str
    lr: float = 1.0
    momentum: float = 0.0  # of SGD and RMSprop
    dampening: float = 0.0
    first_dampened: bool = False  # whether dampening counts at the step that makes the buffer
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999  # RMSprop's alpha too
    eps: float = 1e-8
    eps_place: str = AFTER_ROOT
    correct_first: bool = True
    correct_second: bool = True
    late: int = 0  # steps that the bias correction counts too many
    amsgrad: bool = False
    centered: bool = False
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    decoupled: bool = False
    decay_by_lr: bool = True  # whether decoupled decay is multiplied by the learning rate
    ascending: bool = False
    forgetful: bool = False  # whether every step starts from no state

    def but(self, **changes: Any) -> Rule:
        """The same rule with other settings."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Given:
    """What one step starts from: the weight, the gradient, the state before it and the number of the step, from 1."""

    weight: Floats
    grad: Floats
    state: Mapping[str, Floats] = field(default_factory=dict)
    step: int = 1

    def before(self, key: str) -> Floats:
        """A state before the step; zero where there was none."""
        return self.state.get(key, np.zeros_like(self.grad))

    def every(self, stride: int) -> Given:
        """The same for every so many elements alone: steps are elementwise."""
        state = {key: item.ravel()[::stride] for key, item in self.state.items() if item.shape == self.grad.shape}
        return Given(self.weight.ravel()[::stride], self.grad.ravel()[::stride], state, self.step)


def take(rule: Rule, given: Given) -> dict[str, Floats]:
    """What a step makes: the `update` of the weight, and the state after it by torch's names."""
    given = replace(given, state={}) if rule.forgetful else given
    grad = -given.grad if rule.ascending else given.grad
    if rule.weight_decay and not rule.decoupled:
        grad = grad + rule.weight_decay * given.weight
    with np.errstate(all="ignore"):
        made = KINDS[rule.kind](rule, given, grad)
        if rule.weight_decay and rule.decoupled:
            rate = rule.lr if rule.decay_by_lr else 1.0
            made["update"] = made["update"] - rate * rule.weight_decay * given.weight
    return made


def _sgd(rule: Rule, given: Given, grad: Floats) -> dict[str, Floats]:
    if not rule.momentum:
        return {"update": -rule.lr * grad}
    first = "momentum_buffer" not in given.state
    kept = 1.0 if first and not rule.first_dampened else 1.0 - rule.dampening
    buffer = rule.momentum * given.before("momentum_buffer") + kept * grad
    return {
        "update": -rule.lr * (grad + rule.momentum * buffer if rule.nesterov else buffer),
        "momentum_buffer": buffer,
    }


def _adam(rule: Rule, given: Given, grad: Floats) -> dict[str, Floats]:
    first = rule.beta1 * given.before("exp_avg") + (1 - rule.beta1) * grad
    second = rule.beta2 * given.before("exp_avg_sq") + (1 - rule.beta2) * grad * grad
    made = {"exp_avg": first, "exp_avg_sq": second}
    if rule.amsgrad:
        second = made["max_exp_avg_sq"] = np.maximum(given.before("max_exp_avg_sq"), second)
    count = given.step + rule.late
    first_correction = 1 - rule.beta1**count if rule.correct_first and count else 1.0
    second_correction = 1 - rule.beta2**count if rule.correct_second and count else 1.0
    if rule.eps_place == IN_ROOT:
        divisor = np.sqrt(second / second_correction + rule.eps)
    elif rule.eps_place == BEFORE_CORRECTION:
        divisor = (np.sqrt(second) + rule.eps) / np.sqrt(second_correction)
    else:
        divisor = np.sqrt(second / second_correction) + rule.eps
    return made | {"update": -rule.lr * first / first_correction / divisor}


def _adagrad(rule: Rule, given: Given, grad: Floats) -> dict[str, Floats]:
    total = given.before("sum") + grad * grad
    rate = rule.lr / (1 + (given.step - 1) * rule.lr_decay)
    return {"update": -rate * grad / _root(rule, total), "sum": total}


def _rmsprop(rule: Rule, given: Given, grad: Floats) -> dict[str, Floats]:
    square = rule.beta2 * given.before("square_avg") + (1 - rule.beta2) * grad * grad
    made, variance = {"square_avg": square}, square
    if rule.centered:
        made["grad_avg"] = rule.beta2 * given.before("grad_avg") + (1 - rule.beta2) * grad
        variance = square - made["grad_avg"] ** 2
    step = grad / _root(rule, variance)
    if rule.momentum:
        step = made["momentum_buffer"] = rule.momentum * given.before("momentum_buffer") + step
    return made | {"update": -rule.lr * step}


def _root(rule: Rule, square: Floats) -> Floats:
    return np.sqrt(square + rule.eps) if rule.eps_place == IN_ROOT else np.sqrt(square) + rule.eps


KINDS: dict[str, Callable[[Rule, Given, Floats], dict[str, Floats]]] = {
    "sgd": _sgd, "adam": _adam, "adagrad": _adagrad, "rmsprop": _rmsprop,
}  # fmt: skip


def rule_of(attrs: Mapping[str, Json], optimizer: str = "") -> Rule | None:
    """The rule that a group's settings describe, by the optimizer's class or by which settings there are."""
    name = optimizer.lower()
    if tells_betas(attrs) or "adam" in name:
        decoupled = bool(attrs.get("decoupled_weight_decay", "adamw" in name))
        beta1, beta2 = _betas(attrs)
        return _with(Rule("adam", beta1=beta1, beta2=beta2, decoupled=decoupled), attrs)
    if "alpha" in attrs or "rmsprop" in name:
        return _with(Rule("rmsprop", beta2=_number(attrs.get("alpha"), 0.99)), attrs)
    if "lr_decay" in attrs or "adagrad" in name:
        return _with(Rule("adagrad", eps=1e-10), attrs)
    if "momentum" in attrs or "sgd" in name:
        return _with(Rule("sgd"), attrs)
    return None


def tells_betas(attrs: Mapping[str, Json]) -> bool:
    """Whether a group's settings hold Adam's two rates, by any of their names."""
    return "betas" in attrs or any(pair[0] in attrs and pair[1] in attrs for pair in BETAS)


def _betas(attrs: Mapping[str, Json]) -> tuple[float, float]:
    for first, second in BETAS:
        if first in attrs and second in attrs:
            return _number(attrs[first], 0.9), _number(attrs[second], 0.999)
    return _pair(attrs.get("betas"), (0.9, 0.999))


def _with(rule: Rule, attrs: Mapping[str, Json]) -> Rule:
    return replace(
        rule,
        lr=_number(attrs.get("lr"), rule.lr),
        eps=_number(attrs.get("eps"), rule.eps),
        momentum=_number(attrs.get("momentum"), 0.0),
        dampening=_number(attrs.get("dampening"), 0.0),
        lr_decay=_number(attrs.get("lr_decay"), 0.0),
        weight_decay=_number(attrs.get("weight_decay"), 0.0),
        nesterov=bool(attrs.get("nesterov", False)),
        amsgrad=bool(attrs.get("amsgrad", False)),
        centered=bool(attrs.get("centered", False)),
        ascending=bool(attrs.get("maximize", False)),
    )


def _number(value: Json, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default


def _pair(value: Json, default: tuple[float, float]) -> tuple[float, float]:
    if isinstance(value, list | tuple) and len(value) == 2:
        return _number(value[0], default[0]), _number(value[1], default[1])
    return default
