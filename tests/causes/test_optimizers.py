"""Causes in an optimizer's step, on steps that torch's optimizers really took."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from firstdrift.causes.evidence import Evidence, Nowhere
from firstdrift.causes.hypotheses import explain
from firstdrift.causes.optimizer import optimizers
from firstdrift.causes.optimizer.optimizer_steps import BEFORE_CORRECTION, IN_ROOT, Given, rule_of, take
from firstdrift.sites import Site

NOISE = 1e-9
ADAM = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-4, "weight_decay": 0.1}
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-4, "weight_decay": 0.05}
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def stepped(kind, settings, steps=3, shape=(40, 12), seed=0):
    """A torch optimizer after some steps: inputs of the last one, the update and the state it made, its settings."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
    optimizer = getattr(torch.optim, kind)([weight], **settings)
    for _ in range(steps):
        state = {k: v.detach().numpy().copy() for k, v in optimizer.state[weight].items() if v is not None}
        before = weight.detach().numpy().copy()
        weight.grad = torch.randn(shape, generator=generator, dtype=torch.float64) * 1e-2
        grad = weight.grad.numpy().copy()
        optimizer.step()
    group = {k: list(v) if isinstance(v, tuple) else v for k, v in optimizer.param_groups[0].items() if k != "params"}
    after = {k: v.detach().numpy().copy() for k, v in optimizer.state[weight].items() if v is not None}
    return {"weight": before, "grad": grad, **state}, weight.detach().numpy() - before, after, group


class Around(Nowhere):
    def __init__(self, kind, tensors=()):
        self.facts = {"optimizer": {"class": kind}}
        self.tensors = dict(tensors)

    def sites(self, phase):
        return [site for site in self.tensors if site.phase == phase]

    def reference(self, site):
        return self.tensors.get(site, (None, None))[0]

    def candidate(self, site):
        return self.tensors.get(site, (None, None))[1]


def evidence_of(kind, settings, found=None, steps=3, shape=(40, 12), key=None, noise=NOISE, **changes):
    """A drift whose candidate changed the rule that torch follows; or whose `found` is given."""
    inputs, update, after, group = stepped(kind, settings, steps, shape)
    rule = rule_of(group, kind)
    given = Given(inputs["weight"], inputs["grad"], {k: v for k, v in inputs.items() if k in after}, steps)
    if found is None:
        found = take(rule.but(**changes), given)[key or "update"]
    elif callable(found):
        found = found(update if key is None else after[key])
    rng = np.random.default_rng(9)
    found = found * (1 + noise * rng.uniform(-1, 1, found.shape))
    phase, port = ("weight_after", "weight") if key is None else ("optim", f"weight.{key}")
    expected = update if key is None else after[key]
    return Evidence(
        Site(0, phase, "fc", port), expected, found, max(noise, NOISE), inputs=inputs, candidate_inputs=inputs,
        attrs=group, around=Around(kind),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("SGD", {"lr": 0.1}),
        ("SGD", SGD),
        ("SGD", SGD | {"dampening": 0.3}),
        ("SGD", SGD | {"nesterov": True}),
        ("SGD", SGD | {"maximize": True}),
        ("Adam", ADAM),
        ("Adam", ADAM | {"amsgrad": True}),
        ("Adam", ADAM | {"maximize": True}),
        ("AdamW", ADAMW),
        ("Adagrad", {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.1}),
        ("RMSprop", {"lr": 0.01, "alpha": 0.9, "momentum": 0.5, "weight_decay": 0.1}),
        ("RMSprop", {"lr": 0.01, "alpha": 0.9, "centered": True}),
    ],
)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_formulas_are_those_of_torch(kind, settings, steps):
    inputs, update, after, group = stepped(kind, settings, steps)
    state = {k: v for k, v in inputs.items() if k in after}
    made = take(rule_of(group, kind), Given(inputs["weight"], inputs["grad"], state, steps))
    np.testing.assert_allclose(made.pop("update"), update, rtol=1e-9, atol=1e-14)
    for key, value in made.items():
        np.testing.assert_allclose(value, after[key], rtol=1e-12, atol=1e-15)


CASES = [
    ("optimizer-bias-correction", "Adam", ADAM, {"correct_first": False, "correct_second": False}),
    ("optimizer-bias-correction", "AdamW", ADAMW, {"correct_first": False}),
    ("optimizer-bias-correction", "AdamW", ADAMW, {"correct_second": False}),
    ("optimizer-bias-correction", "AdamW", ADAMW, {"late": 1}),
    ("optimizer-bias-correction", "Adam", ADAM, {"late": -1}),
    ("optimizer-eps", "Adam", ADAM, {"eps_place": IN_ROOT}),
    ("optimizer-eps", "AdamW", ADAMW, {"eps_place": BEFORE_CORRECTION}),
    ("optimizer-eps", "AdamW", ADAMW, {"eps": 1e-3}),
    ("optimizer-eps", "RMSprop", {"lr": 0.01, "eps": 1e-4}, {"eps_place": IN_ROOT}),
    ("optimizer-eps", "Adagrad", {"lr": 0.1, "eps": 1e-3}, {"eps": 1e-2}),
    ("optimizer-momentum", "SGD", SGD, {"nesterov": True}),
    ("optimizer-momentum", "SGD", SGD, {"momentum": 0.8}),
    ("optimizer-momentum", "SGD", SGD, {"dampening": 0.1}),
    ("optimizer-momentum", "SGD", SGD, {"momentum": 0.0}),
    ("optimizer-momentum", "SGD", SGD | {"nesterov": True}, {"momentum": 0.7}),
    ("optimizer-momentum", "SGD", SGD, {"forgetful": True}),
    ("optimizer-momentum", "AdamW", ADAMW, {"forgetful": True}),
    ("optimizer-momentum", "RMSprop", {"lr": 0.01, "alpha": 0.9}, {"forgetful": True}),
    ("optimizer-momentum", "Adam", ADAM, {"beta1": 0.85}),
    ("optimizer-momentum", "AdamW", ADAMW, {"beta2": 0.999}),
    ("optimizer-momentum", "RMSprop", {"lr": 0.01, "alpha": 0.9}, {"beta2": 0.99}),
    ("optimizer-lr", "SGD", SGD, {"lr": 0.2}),
    ("optimizer-lr", "AdamW", ADAMW, {"lr": 3e-4}),
    ("optimizer-lr", "AdamW", ADAMW, {"ascending": True}),
    ("weight-decay-coupling", "Adam", ADAM, {"decoupled": True}),
    ("weight-decay-coupling", "AdamW", ADAMW, {"decoupled": False}),
    ("weight-decay-coupling", "AdamW", ADAMW, {"decay_by_lr": False}),
    ("weight-decay-coupling", "AdamW", ADAMW, {"weight_decay": 0.2}),
    ("weight-decay-coupling", "Adam", ADAM, {"weight_decay": 0.3}),
    ("missing-term", "AdamW", ADAMW, {"weight_decay": 0.0}),
    ("missing-term", "SGD", SGD, {"weight_decay": 0.0}),
]


@pytest.mark.parametrize(("label", "kind", "settings", "changes"), CASES, ids=lambda item: str(item)[:40])
@pytest.mark.parametrize("noise", [1e-9, 1e-7])
def test_a_changed_rule_is_named(label, kind, settings, changes, noise):
    cause = explain(evidence_of(kind, settings, noise=noise, **changes), optimizers.HYPOTHESES)
    assert cause.label == label, cause
    for name, value in changes.items():
        assert cause.parameters.get(name, value) == (
            value if isinstance(value, str) else pytest.approx(value, rel=1e-3)
        )


@pytest.mark.parametrize(
    ("label", "kind", "settings", "changes"),
    [case for case in CASES if not {"late", "beta2", "eps", "eps_place"} & case[3].keys()],
    ids=lambda item: str(item)[:40],
)
def test_large_effects_are_named_through_the_noise_of_bfloat16(label, kind, settings, changes):
    if label in ("weight-decay-coupling", "missing-term"):
        settings = settings | {"weight_decay": 0.5}
    cause = explain(evidence_of(kind, settings, noise=3e-3, **changes), optimizers.HYPOTHESES)
    assert cause.label in (label, "unknown") or cause.runner_up == label, cause


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_a_step_along_another_gradient_is_not_explained(kind, seed):
    other = np.random.default_rng(seed).standard_normal((40, 12))
    cause = explain(evidence_of(kind, {"lr": 0.1}, found=lambda u: other * abs(u).mean()), optimizers.HYPOTHESES)
    assert cause.label == "unknown", cause


def test_nothing_is_said_where_the_rule_does_not_make_what_the_reference_made():
    evidence = evidence_of("AdamW", ADAMW, correct_first=False)
    odd = replace(evidence, expected=evidence.expected + 0.1 * np.abs(evidence.expected))
    assert explain(odd, optimizers.HYPOTHESES).label == "unknown"


@pytest.mark.parametrize("steps", [1, 3])
def test_a_rate_is_found_without_settings(steps):
    evidence = evidence_of("SGD", {"lr": 0.1}, steps=steps, lr=0.3)
    bare = replace(evidence, attrs={}, around=Nowhere())
    cause = explain(bare, optimizers.HYPOTHESES)
    assert (cause.label, cause.parameters["lr"]) == ("optimizer-lr", pytest.approx(0.3))


@pytest.mark.parametrize(
    ("label", "kind", "key", "changes"),
    [
        ("optimizer-momentum", "AdamW", "exp_avg", {"beta1": 0.8}),
        ("optimizer-momentum", "AdamW", "exp_avg_sq", {"beta2": 0.999}),
        ("weight-decay-coupling", "AdamW", "exp_avg", {"decoupled": False}),
        ("optimizer-momentum", "SGD", "momentum_buffer", {"momentum": 0.8}),
        ("optimizer-momentum", "SGD", "momentum_buffer", {"ascending": True}),
    ],
)
def test_state_that_the_step_leaves_is_explained(label, kind, key, changes):
    settings = ADAMW if kind == "AdamW" else {"lr": 0.1, "momentum": 0.9}
    cause = explain(evidence_of(kind, settings, key=key, **changes), optimizers.HYPOTHESES)
    assert cause.label == label, cause


def test_a_velocity_that_takes_a_part_of_the_first_gradient_is_momentum():
    changes = {"dampening": 0.9, "first_dampened": True}
    cause = explain(evidence_of("SGD", {"lr": 0.1, "momentum": 0.9}, steps=1, **changes), optimizers.HYPOTHESES)
    assert (cause.label, "1 - momentum" in cause.sentence) == ("optimizer-momentum", True)


def test_a_count_of_steps_off_by_one_is_a_bias_correction():
    evidence = Evidence(Site(0, "optim", "fc", "weight.step"), np.array(3.0), np.array(2.0), 1e-12)
    assert explain(evidence, optimizers.HYPOTHESES).label == "optimizer-bias-correction"


@pytest.mark.parametrize(("reference", "candidate"), [(0.0, 0.1), (0.1, 0.0)])
def test_decay_of_a_vector_alone_is_a_matter_of_groups(reference, candidate):
    settings = ADAMW | {"weight_decay": reference}
    evidence = evidence_of("AdamW", settings, shape=(64,), weight_decay=candidate, decoupled=True)
    cause = explain(evidence, optimizers.HYPOTHESES)
    assert cause.label == "weight-decay-norms", cause
    matrix = np.random.default_rng(0).standard_normal((8, 8))
    decayed = {Site(0, "weight_after", "fc2", "weight"): (matrix, matrix * (1 - 1e-3 * (candidate - reference)))}
    everywhere = replace(evidence, around=Around("AdamW", decayed))
    label = "missing-term" if candidate == 0 else "weight-decay-coupling"
    assert explain(everywhere, optimizers.HYPOTHESES).label == label


def test_a_setting_that_the_candidate_declares_costs_nothing():
    evidence = evidence_of("AdamW", ADAMW, lr=2e-3)
    cause = explain(replace(evidence, candidate_attrs=dict(evidence.attrs) | {"lr": 2e-3}), optimizers.HYPOTHESES)
    assert (cause.label, cause.parameters) == ("optimizer-lr", {"lr": 2e-3, "reference_lr": 1e-3})


def test_a_parameter_that_did_not_move_was_skipped():
    assert explain(evidence_of("SGD", SGD, found=np.zeros_like), optimizers.HYPOTHESES).label == "skipped-op"


@pytest.mark.parametrize("spoil", [lambda a: a * np.nan, lambda a: a[:0]])
def test_what_is_not_a_number_or_empty_is_left_alone(spoil):
    evidence = evidence_of("AdamW", ADAMW, lr=2e-3)
    broken = replace(evidence, expected=spoil(evidence.expected), found=spoil(evidence.found))
    assert explain(broken, optimizers.HYPOTHESES).label == "unknown"


def test_a_large_parameter_is_explained():
    evidence = evidence_of("AdamW", ADAMW, shape=(2500, 4000), eps_place=BEFORE_CORRECTION)
    assert explain(evidence, optimizers.HYPOTHESES).label == "optimizer-eps"


def without_state(kind, settings, noise=NOISE, **changes):
    """A drift at the third step of a run that recorded weights and gradients, and no state."""
    tensors, state, rule = {}, {}, None
    for step in range(3):
        inputs, update, _, group = stepped(kind, settings, step + 1)
        rule = rule_of(group, kind)
        tensors[Site(step, "weight", "fc", "weight")] = (inputs["weight"],) * 2
        tensors[Site(step, "grad", "fc", "weight")] = (inputs["grad"],) * 2
        made = take(rule.but(**changes), Given(inputs["weight"], inputs["grad"], state, step + 1))
        state = {key: item for key, item in take(rule, Given(inputs["weight"], inputs["grad"], state, step + 1)).items()
                 if key != "update"}  # fmt: skip
    inputs = {"weight": inputs["weight"], "grad": inputs["grad"]}
    return Evidence(
        Site(2, "weight_after", "fc", "weight"), update, made["update"], noise, inputs=inputs, candidate_inputs=inputs,
        attrs=group, around=Around(kind, tensors),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("label", "kind", "settings", "changes"),
    [
        ("optimizer-momentum", "SGD", SGD, {"momentum": 0.0}),
        ("optimizer-momentum", "SGD", SGD, {"nesterov": True}),
        ("optimizer-bias-correction", "AdamW", ADAMW, {"correct_second": False}),
        ("weight-decay-coupling", "AdamW", ADAMW, {"decoupled": False}),
        ("optimizer-lr", "Adam", ADAM, {"lr": 2e-2}),
    ],
)
def test_state_that_nobody_recorded_is_made_once_more_from_the_gradients(label, kind, settings, changes):
    cause = explain(without_state(kind, settings, **changes), optimizers.HYPOTHESES)
    assert cause.label == label, cause


def test_running_statistics_that_did_not_move_are_not_the_optimizers_fault():
    evidence = evidence_of("SGD", SGD, found=lambda update: 0 * update)
    moved = replace(evidence, site=evidence.site._replace(port="running_mean"))
    assert explain(moved, optimizers.HYPOTHESES).label != "skipped-op"
