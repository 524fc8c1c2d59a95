"""A change of an optimizer's rule must hold for the other states of the step and at the steps after it."""

from dataclasses import replace

import numpy as np
import pytest
from blame import Run

from firstdrift.causes.evidence import Evidence
from firstdrift.causes.hypotheses import explain
from firstdrift.causes.optimizer.optimizer_steps import BEFORE_CORRECTION, Given, Rule, rule_of, take
from firstdrift.causes.table import TABLE
from firstdrift.sites import Site

RULE = Rule("adam", lr=0.01, beta1=0.9, beta2=0.99, eps=1e-3)
NAMES = [
    {"betas": [0.9, 0.99]}, {"b1": 0.9, "b2": 0.99}, {"beta_1": 0.9, "beta_2": 0.99}, {"beta1": 0.9, "beta2": 0.99},
    {"rates": [0.9, 0.99]},
]  # fmt: skip


def trained(rules, shape=(8, 6)):
    """What steps leave, each by a rule of its own."""
    rng = np.random.default_rng(1)
    weight, state, left = rng.standard_normal(shape), {}, {}
    for step, rule in enumerate(rules):
        grad = rng.standard_normal(shape) * 0.1
        made = take(rule, Given(weight, grad, state, step + 1))
        left[Site(step, "weight", "fc", "weight")], left[Site(step, "grad", "fc", "weight")] = weight, grad
        weight = weight + made.pop("update")
        left[Site(step, "weight_after", "fc", "weight")] = weight
        left |= {Site(step, "optim", "fc", f"weight.{key}"): value for key, value in made.items()}
        state = made
    return left


def drift(candidate, attrs=NAMES[0]):
    """The drift of the first update, where steps of the candidate are by other rules."""
    ours, theirs = trained([RULE] * len(candidate)), trained(candidate)
    site = Site(0, "weight_after", "fc", "weight")
    inputs = {phase: ours[site._replace(phase=phase)] for phase in ("weight", "grad")}
    settings = {"lr": 0.01, "eps": 1e-3, **attrs}
    return Evidence(
        site, ours[site] - inputs["weight"], theirs[site] - inputs["weight"], 1e-9, inputs=inputs,
        candidate_inputs=inputs, attrs=settings, candidate_attrs=settings,
        around=Run(ours, theirs, facts={"optimizer": {"class": "OwnAdam"}}),
    )  # fmt: skip


# With these rates all three give the same first step: the root of 1 - beta2 is 1 - beta1.
UNCORRECTED = RULE.but(correct_first=False, correct_second=False)
EARLY = RULE.but(eps_place=BEFORE_CORRECTION)
LARGER = RULE.but(eps=1e-2)


@pytest.mark.parametrize("attrs", NAMES)
@pytest.mark.parametrize(
    ("rule", "label", "words"),
    [
        (UNCORRECTED, "optimizer-bias-correction", "lacks the bias correction"),
        (EARLY, "optimizer-eps", "before the bias correction"),
        (LARGER, "optimizer-eps", "eps is 0.01 instead of 0.001"),
    ],
)
def test_the_next_step_tells_apart_what_the_first_does_not(rule, label, words, attrs):
    first = [drift([one]).found for one in (UNCORRECTED, EARLY, LARGER)]
    assert np.allclose(first[0], first[1])
    assert np.allclose(first[0], first[2])
    said = explain(drift([rule, rule, rule], attrs), TABLE)
    assert (said.label, words in said.sentence) == (label, True), said


def test_a_change_of_one_step_alone_is_still_named():
    slow = RULE.but(correct_first=False)
    assert explain(drift([slow, RULE, RULE]), TABLE).label == "optimizer-bias-correction"


def test_a_step_without_those_after_it_is_explained_as_before():
    said = explain(drift([RULE.but(eps=3e-2)]), TABLE)
    assert (said.label, said.parameters["eps"]) == ("optimizer-eps", pytest.approx(3e-2))


def test_rates_are_read_by_any_of_their_names():
    for attrs in NAMES[:4]:
        rule = rule_of(attrs, "")
        assert rule is not None
        assert (rule.kind, rule.beta1, rule.beta2) == ("adam", 0.9, 0.99)
    assert rule_of({"b1": 0.9, "lr": 0.1}, "") is None


@pytest.mark.parametrize(("second", "label"), [(1.0, "optimizer-momentum"), (3.0, "scale")])
def test_another_state_refutes_a_rate(second, label):
    """Four times the first moment is another beta1, but not beside a change of the second."""
    evidence = drift([RULE])
    places = [one for phase in ("weight", "grad", "weight_after", "optim") for one in evidence.around.sites(phase)]
    ours = {one: evidence.around.reference(one) for one in places}
    site = Site(0, "optim", "fc", "weight.exp_avg")
    other = site._replace(port="weight.exp_avg_sq")
    around = Run(ours, {site: 4 * ours[site], other: second * ours[other]}, facts=evidence.around.facts)
    found = replace(evidence, site=site, expected=ours[site], found=4 * ours[site], around=around)
    assert explain(found, TABLE).label == label
