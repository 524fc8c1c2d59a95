"""The difference is a recorded tensor: named although the rest of the sum is not understood."""

import numpy as np
import pytest
import torch
from blame import BF16, FLOAT32, SITE, Run, blurred, cause, drift, numbers

from firstdrift.causes.sums.lone_terms import HYPOTHESES, channel_gain, gated_term, lone_term, other_term
from firstdrift.sites import Site

IN = SITE._replace(name="layers.1.update", port="in.0")
A, B, C, D = (numbers(3, 8, 24, seed=seed) for seed in range(4))
MIXED = np.take(np.cumsum(A * numbers(24, seed=9), axis=1), [3, 1, 0, 7, 2, 6, 5, 4], axis=1)  # of no recorded tensor
GAIN = numbers(24, seed=7) * 0.2 + 0.4
GATE = numbers(3, 8, 1, seed=8)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def site(name, port="out"):
    return Site(0, "fwd", name, port)


def named(expected, found, noise=FLOAT32, **known):
    """The cause where what is recorded of the candidate carries noise."""
    inputs = known.pop("inputs", {"layers.1.msg": A, "layers.1.loop": B})
    theirs = {key: blurred(value, noise, seed) for seed, (key, value) in enumerate(inputs.items())}
    return cause(expected, found, noise, IN, inputs=inputs, candidate_inputs=theirs, **known)


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("weight", "label"), [(0, "missing-term"), (2, "missing-term"), (0.25, "scale"), (-1, "scale")]
)
def test_a_term_beside_what_is_not_understood_is_named(weight, label, noise):
    said = named(MIXED + B, MIXED + weight * B, noise)
    assert (said.label, said.parameters["term"]) == (label, "layers.1.loop"), said


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
def test_a_step_that_is_not_taken_lacks_its_term(noise):
    base, net = site("net", "in.0"), site("net")
    run = Run({base: C, net: B, IN: C - 0.3 * B}, {IN: C})
    said = named(C - 0.3 * B, C, noise, inputs={"net": B}, around=run)
    assert (said.label, said.parameters["term"]) == ("missing-term", "net"), said
    halved = named(C - 0.3 * B, C - 0.15 * B, noise, inputs={"net": B}, around=run)
    assert halved.label == "scale", halved


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
def test_what_goes_around_the_rest_is_a_residual(noise):
    run = Run(
        {site("layers.0"): B, site("layers.1.msg"): A, IN: A},
        producers={site("layers.1.msg"): [site("layers.0")], IN: [site("layers.1.msg"), site("layers.0")]},
    )
    inputs = {"layers.1.msg": A, "layers.0": B}
    assert named(MIXED + B, MIXED, noise, inputs=inputs, around=run).label == "missing-residual"


def test_a_term_that_is_only_known_from_earlier_in_the_run_is_named():
    run = Run({site("stem"): B, site("layers.1.msg"): A, IN: A})
    said = named(MIXED + B, MIXED, inputs={"layers.1.msg": A}, around=run)
    assert (said.label, said.parameters["term"]) == ("missing-term", "stem")


def test_a_parameter_that_goes_straight_into_a_sum_is_named():
    positions = Site(0, "weight", "", "positions")
    table = numbers(8, 24, seed=11)
    run = Run({positions: table, IN: A}, producers={IN: [positions]})
    said = named(MIXED + table, MIXED, inputs={"layers.1.msg": A}, around=run)
    assert (said.label, said.parameters["term"]) == ("missing-term", "positions")


def test_a_term_whose_channels_lie_last_is_recognised():
    shape = (2, 5, 4, 4)
    rest, branch = numbers(*shape, seed=12), numbers(2, 4, 4, 5, seed=13)
    said = named(rest**2 + np.moveaxis(branch, -1, 1), rest**2, inputs={"x": rest, "branch": branch})
    assert (said.label, said.parameters["term"]) == ("missing-term", "branch")


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(("found", "label"), [(MIXED + B, "skipped-op"), (MIXED, "missing-term")])
def test_the_gain_of_one_branch_is_named_although_the_other_is_not_understood(found, label, noise):
    said = named(MIXED + GAIN * B, found, noise, parameters={"gamma": GAIN})
    assert (said.label, said.parameters["gate"]) == (label, "gamma"), said


@pytest.mark.parametrize(("found", "label"), [(MIXED + B, "skipped-op"), (MIXED, "missing-term")])
def test_a_gated_branch_beside_what_is_not_understood_is_named(found, label):
    inputs = {"msg": A, "shared": B, "gate": GATE}
    said = named(MIXED + sigmoid(GATE) * B, found, inputs=inputs)
    assert (said.label, said.parameters["gate"]) == (label, "sigmoid(gate)"), said


def test_a_gain_of_one_branch_that_nobody_recorded_is_a_factor_per_channel():
    said = named(MIXED + B, MIXED + GAIN * B)
    assert (said.label, said.parameters["term"]) == ("channel-scale", "layers.1.loop"), said


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
def test_another_tensor_in_the_place_of_a_skip_is_named_although_the_sum_is_not_understood(noise):
    raw, normed = site("layers.1", "in.0"), site("layers.1.norm")
    run = Run({raw: C, normed: D, site("layers.1.msg"): A, IN: A})
    said = named(MIXED + C, MIXED + D, noise, inputs={"layers.1.msg": A}, around=run)
    assert said.label == "residual-source", said
    assert said.parameters == {"term": "layers.1.norm", "reference_term": "layers.1:in.0"}


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("hypothesis", HYPOTHESES)
@pytest.mark.parametrize(
    "found",
    [
        1.5 * (MIXED + B),  # a factor of all
        (MIXED + B)[..., ::-1],
        MIXED + numbers(3, 8, 24, seed=40),
        MIXED + B * np.abs(C),
        np.zeros_like(MIXED),
        np.full_like(MIXED, np.nan),
        np.where(np.arange(24) < 3, 0, MIXED + B),
    ],
)
def test_a_difference_that_is_no_recorded_tensor_is_not_called_one(found, hypothesis, noise):
    run = Run({site("layers.0"): C, site("layers.0.norm"): D, IN: A})
    evidence = drift(MIXED + B, found, noise, IN, inputs={"msg": A, "loop": B}, around=run)
    assert list(hypothesis(evidence)) == []


@pytest.mark.parametrize("function", [torch.nn.functional.relu, torch.nn.functional.softplus])
def test_an_activation_of_the_negative_lacks_no_term(function):
    """relu(-x) is relu(x) - x, and so for softplus."""
    x = torch.from_numpy(A)
    evidence = drift(function(x).numpy(), function(-x).numpy(), FLOAT32, IN, inputs={"x": A})
    for hypothesis in (lone_term, gated_term, channel_gain, other_term):
        assert list(hypothesis(evidence)) == []


def test_what_another_tensor_of_the_run_replaces_altogether_is_no_sum():
    run = Run({site("layers.0"): C, site("layers.0.norm"): D, IN: C})
    assert list(other_term(drift(C, D, FLOAT32, IN, inputs={"msg": A}, around=run))) == []


@pytest.mark.parametrize("hypothesis", HYPOTHESES)
def test_a_factor_of_the_only_tensor_is_not_a_term(hypothesis):
    assert list(hypothesis(drift(2 * B, B, FLOAT32, IN, inputs={"loop": B}))) == []


def test_one_factor_for_all_channels_is_not_one_for_each():
    assert list(channel_gain(drift(MIXED + B, MIXED + 0.3 * B, FLOAT32, IN, inputs={"loop": B}))) == []
