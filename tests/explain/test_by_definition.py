"""Where nothing says how a drift came about, what it is by definition is said, and with little confidence."""

import numpy as np
import pytest
from tests.explain.blame import Run, cause, numbers

from firstdrift.core.sites import Site

GRADIENT = Site(0, "agrad", "blocks.0.gate", "out")
WEIGHT = Site(0, "grad", "blocks.0.mix", "weight")
LOSS = Site(0, "loss", "loss", "out")
LOGITS = numbers(6, 5, seed=1)
SCALAR = np.array(1.375)


def odd(x):
    """A change of which no hypothesis speaks."""
    return np.sin(3 * x) + 0.4 * np.roll(x, 1, -1)


def backward(site, found=odd, **known):
    """The cause of a gradient's drift; what it was computed from is recorded."""
    expected = numbers(4, 6, 10, seed=2)
    inputs = {"agrad next": numbers(4, 6, 5, seed=3), "in.0": numbers(4, 6, 10, seed=4)}
    return cause(expected, found(expected), site=site, op="Gate", **({"inputs": inputs} | known))


@pytest.mark.parametrize("site", [GRADIENT, WEIGHT])
def test_a_gradient_that_differs_where_all_it_reads_agrees_is_another_formula(site):
    said = backward(site)
    assert said.label == "gradient-formula"
    assert "computes something else" in said.sentence
    assert 0 < said.confidence < 0.3


def test_a_replayed_gradient_needs_no_recorded_inputs():
    assert backward(GRADIENT, inputs={}).label == "unknown"
    assert backward(GRADIENT, inputs={}, replayed=True).label == "gradient-formula"


@pytest.mark.parametrize("key", ["agrad next", "in.0"])
def test_a_gradient_whose_sources_differ_is_not_blamed_on_its_backward(key):
    inputs = {"agrad next": numbers(4, 6, 5, seed=3), "in.0": numbers(4, 6, 10, seed=4)}
    assert backward(GRADIENT, inputs=inputs, candidate_inputs=inputs | {key: inputs[key] * 1.1}).label == "unknown"


@pytest.mark.parametrize(("fill", "label"), [(-np.inf, "gradient-formula"), (np.nan, "unknown")])
def test_scores_that_both_sides_mask_alike_agree(fill, label):
    scores = np.where(np.arange(10) > 6, fill, numbers(4, 6, 10, seed=4))
    inputs = {"agrad next": numbers(4, 6, 5, seed=3), "in.0": scores}
    assert backward(GRADIENT, inputs=inputs).label == label
    other = inputs | {"in.0": np.where(np.arange(10) > 7, fill, scores)}
    other["in.0"][..., 7] = 0.0
    assert backward(GRADIENT, inputs=inputs, candidate_inputs=other).label == "unknown"


def test_a_gradient_of_which_only_the_forward_is_known_stays_unknown():
    assert backward(GRADIENT, inputs={"in.0": numbers(4, 6, 10, seed=4)}).label == "unknown"


@pytest.mark.parametrize(
    ("found", "label"),
    [
        (lambda e: 0 * e, "gradient-missing"),
        (lambda e: np.where(np.arange(10) == 3, np.nan, e), None),
    ],
)
def test_what_a_hypothesis_explains_is_said_instead(found, label):
    said = backward(GRADIENT, found)
    assert said.label == label if label else said.label != "gradient-formula"
    assert "something else" not in said.sentence


def test_a_forward_drift_is_nothing_by_definition():
    assert backward(Site(0, "fwd", "blocks.0.gate", "out"), replayed=True).label == "unknown"


@pytest.mark.parametrize(("shared", "label"), [(True, "unknown"), (False, "gradient-formula")])
def test_a_weight_that_another_module_uses_too_is_not_blamed_on_one(shared, label):
    weight = numbers(6, 10, seed=5)
    other = weight if shared else numbers(6, 10, seed=6)
    around = Run({Site(0, "weight", "blocks.0.mix", "weight"): weight, Site(0, "weight", "head", "weight"): other})
    assert backward(WEIGHT, around=around).label == label


def test_it_is_said_of_a_large_tensor_too():
    expected = numbers(64, 128, 160, seed=2)
    inputs = {"agrad next": numbers(64, 4, 5, seed=3)}
    said = cause(expected, odd(expected), site=GRADIENT, inputs=inputs)
    assert said.label == "gradient-formula"


def loss(found, reference=None, candidate=None, facts=None, expected=SCALAR, **known):
    """The cause of a loss's drift among recorded gradients."""
    around = Run(reference or {}, candidate, facts=facts)
    return cause(expected, np.asarray(found), site=LOSS, around=around, **({"inputs": {"logits": LOGITS}} | known))


SCORES = Site(0, "lossgrad", "loss", "out")
SLOPES = {SCORES: numbers(6, 5, seed=3), Site(0, "grad", "head", "weight"): numbers(5, 7, seed=4)}
TURNED = {SCORES: odd(numbers(6, 5, seed=3))}


@pytest.mark.parametrize(("reference", "candidate"), [({}, {}), (SLOPES, TURNED)])
def test_a_loss_of_the_same_scores_is_another_loss(reference, candidate):
    said = loss(1.9134, reference, candidate)
    assert said.label == "loss-formula"
    assert said.confidence < 0.3
    assert "not recorded" in said.sentence


def test_a_loss_of_other_scores_or_targets_is_nothing_by_definition():
    assert loss(1.9134, candidate_inputs={"logits": 1.1 * LOGITS}).label == "unknown"
    other = Site(0, "fwd", "", "out.1")
    assert loss(1.9134, {other: numbers(6, 2)}, {other: numbers(6, 2, seed=1)}).label == "unknown"
    told = {"target": numbers(6, 5), "candidate_target": numbers(6, 5, seed=1)}
    assert loss(1.9134, facts=told).label == "unknown"


def test_equal_numbers_do_not_tell_an_offset_from_a_factor():
    expected = np.array([2.0, 2.0, 2.0, 2.0, 3.0])
    assert cause(expected[:4], expected[:4] + 1, site=Site(0, "fwd", "", "out.1")).label != "offset"
