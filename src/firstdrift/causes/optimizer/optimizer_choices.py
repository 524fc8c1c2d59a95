"""The settings in which optimizers differ, each with its label, the values to try and the words for it."""

from __future__ import annotations

from typing import Any

from .optimizer_steps import AFTER_ROOT, BEFORE_CORRECTION, IN_ROOT, Rule

# Settings with few values, each with its label. Two corrections may be left out at once, so changes are dicts.
CHOICES: dict[str, dict[str, tuple[str, tuple[dict[str, Any], ...]]]] = {
    "adam": {
        "bias correction": ("optimizer-bias-correction", (
            {"correct_first": False, "correct_second": False}, {"correct_first": False}, {"correct_second": False},
            {"correct_first": True, "correct_second": True}, {"late": 1}, {"late": -1}, {"late": 0},
        )),
        "eps": ("optimizer-eps", tuple({"eps_place": place} for place in (AFTER_ROOT, IN_ROOT, BEFORE_CORRECTION))),
        "decay": ("weight-decay-coupling", (
            {"decoupled": True}, {"decoupled": False},
            {"decoupled": True, "decay_by_lr": False}, {"decoupled": True, "decay_by_lr": True},
        )),
        "state": ("optimizer-momentum", ({"forgetful": True},)),
    },
    "sgd": {
        "momentum": ("optimizer-momentum", (
            {"nesterov": True}, {"nesterov": False}, {"momentum": 0.0}, {"dampening": 0.0},
            {"first_dampened": True}, {"first_dampened": False}, {"forgetful": True},
        )),
        "decay": ("weight-decay-coupling", (
            {"decoupled": True}, {"decoupled": False}, {"decoupled": True, "decay_by_lr": False},
        )),
    },
    "rmsprop": {
        "eps": ("optimizer-eps", ({"eps_place": IN_ROOT}, {"eps_place": AFTER_ROOT})),
        "momentum": ("optimizer-momentum", (
            {"momentum": 0.0}, {"centered": True}, {"centered": False}, {"forgetful": True},
        )),
        "decay": ("weight-decay-coupling", ({"decoupled": True}, {"decoupled": False})),
    },
    "adagrad": {
        "eps": ("optimizer-eps", ({"eps_place": IN_ROOT}, {"eps_place": AFTER_ROOT})),
        "decay": ("weight-decay-coupling", ({"decoupled": True}, {"decoupled": False})),
    },
}  # fmt: skip

_RATES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 0.9999)
_EPS = tuple(10.0**-power for power in range(2, 17))
# Settings that are numbers, with the values from which a fit begins.
NUMBERS: dict[str, dict[str, tuple[str, tuple[float, ...]]]] = {
    "adam": {
        "eps": ("optimizer-eps", _EPS),
        "beta1": ("optimizer-momentum", (0.0, *_RATES)),
        "beta2": ("optimizer-momentum", _RATES),
    },
    "sgd": {"momentum": ("optimizer-momentum", _RATES), "dampening": ("optimizer-momentum", (0.1, 0.5, 0.9))},
    "rmsprop": {
        "eps": ("optimizer-eps", _EPS),
        "beta2": ("optimizer-momentum", _RATES),
        "momentum": ("optimizer-momentum", _RATES),
    },
    "adagrad": {"eps": ("optimizer-eps", _EPS)},
}
WORDS = {
    "lr": "the learning rate", "eps": "eps", "beta1": "beta1", "beta2": "beta2", "momentum": "the momentum",
    "dampening": "the dampening", "weight_decay": "the weight decay",
}  # fmt: skip
LABEL_OF = {
    "lr": "optimizer-lr", "lr_decay": "optimizer-lr", "eps": "optimizer-eps", "beta1": "optimizer-momentum",
    "beta2": "optimizer-momentum", "momentum": "optimizer-momentum", "dampening": "optimizer-momentum",
    "nesterov": "optimizer-momentum", "centered": "optimizer-momentum", "amsgrad": "optimizer-momentum",
    "decoupled": "weight-decay-coupling",
}  # fmt: skip
DEFAULTS = (
    Rule("sgd"),
    Rule("adam"),
    Rule("adam", beta2=0.95),
    Rule("rmsprop", beta2=0.99),
    Rule("adagrad", eps=1e-10),
)


def choice_sentence(rule: Rule, changes: dict[str, Any], step: int) -> str:
    """What changes of a rule say of the candidate's, at a step counted from 1."""
    new = rule.but(**changes)
    if new.eps_place != rule.eps_place:
        return f"eps is added {new.eps_place} instead of {rule.eps_place}"
    if new.late != rule.late:
        return f"the bias is corrected as at step {step + new.late} instead of {step + rule.late}"
    if (new.correct_first, new.correct_second) != (rule.correct_first, rule.correct_second):
        moments = [name for name, on in (("first", new.correct_first), ("second", new.correct_second)) if not on]
        return (
            f"the {' and '.join(moments)} moment lacks the bias correction" if moments else "both moments are corrected"
        )
    if new.decoupled != rule.decoupled:
        ways = ("added to the gradient (L2)", "taken off the weight (decoupled)")
        return f"weight decay is {ways[new.decoupled]} instead of {ways[rule.decoupled]}"
    if new.decay_by_lr != rule.decay_by_lr:
        return f"decoupled weight decay is {'' if new.decay_by_lr else 'not '}multiplied by the learning rate"
    if new.forgetful != rule.forgetful:
        return "the state of the step before is forgotten: every step starts anew"
    name, value = next((name, value) for name, value in changes.items() if getattr(rule, name) != value)
    return f"{name.replace('_', ' ')} is {str(value).lower()} instead of {str(getattr(rule, name)).lower()}"
