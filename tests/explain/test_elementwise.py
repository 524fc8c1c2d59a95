"""A factor, an offset, a factor per channel, a clamp: named with their numbers, or not at all."""

import numpy as np
import pytest
from tests.explain.blame import BF16, FLOAT32, SITE, cause, drift, numbers

from firstdrift.explain.relations.elementwise import clamp, names_of, offset, scale
from firstdrift.explain.relations.hypotheses import Finding

X = numbers(4, 16, 64)


def scaled(channels, factor):
    def change(x):
        y = x.copy()
        y[..., channels] *= factor
        return y

    return change


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("change", "label", "fitted"),
    [
        (lambda x: x * 0.125, "scale", {"factor": 0.125}),
        (lambda x: x * 8.0, "scale", {"factor": 8.0}),
        (lambda x: x * -1.0, "scale", {"factor": -1.0}),
        (lambda x: x * 1.25, "scale", {"factor": 1.25}),
        (lambda x: x + 0.75, "offset", {"offset": 0.75}),
        (lambda x: 0.5 * x + 3.0, "offset", {"offset": 3.0, "factor": 0.5}),
        (scaled(5, 3.0), "channel-scale", {"channels": [5]}),
        (scaled([2, 9], 0.5), "channel-scale", {"channels": [2, 9]}),
        (lambda x: np.clip(x, -1.0, 1.5), "clamp", {"low": -1.0, "high": 1.5}),
        (lambda x: np.clip(x, None, 0.5), "clamp", {"high": 0.5}),
    ],
)
def test_a_change_of_every_element_is_named_with_its_numbers(change, label, fitted, noise):
    said = cause(X, change, noise)
    assert said.label == label, said
    for key, value in fitted.items():
        assert said.parameters[key] == pytest.approx(value, rel=20 * noise), said


def test_a_missing_clamp_is_named_with_its_bounds():
    said = cause(np.clip(X, -1.0, 1.0), X)
    assert said.label == "clamp"
    assert said.parameters == {"reference_low": -1.0, "reference_high": 1.0}


@pytest.mark.parametrize(
    ("factor", "name"),
    [
        (0.125, "1/sqrt(64)"),
        (1 / 16, "1/16"),
        (8.0, "sqrt(64)"),
        (np.log2(np.e), "log2(e)"),
        (15 / 16, "15/16"),
        (2.0**-7, "2^-7"),
        (1 / 255, "1/255"),
        (4 / 7, "4/7"),
        (np.sqrt(48 / 64), "sqrt(48/64)"),
        (1.0 / 3.7, "1/multiplier"),
    ],
)
def test_a_factor_is_told_by_what_it_equals(factor, name):
    said = cause(X, X * factor, attrs={"multiplier": 3.7}, inputs={"in.0": numbers(4, 48)})
    assert said.label == "scale"
    assert name in said.parameters["equals"]


def test_a_factor_that_equals_nothing_is_given_as_a_number_alone():
    said = cause(X, X * 1.2345678)
    assert said.parameters["equals"] == []
    assert "1.23457 times" in said.sentence


def test_a_size_of_the_tensor_names_a_factor_only_within_noise():
    assert "1/sqrt(64)" in names_of(0.125 * (1 + 1e-8), drift(X, X))
    assert names_of(0.125 * (1 + 1e-4), drift(X, X)) == ()


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (np.ones((8, 8)), np.full((8, 8), 2.0)),  # a factor of 2 or an offset of 1
        (np.array([3.0]), np.array([6.0])),
        (np.array([1e6, 1e-3, 2e-3, 1e-3]), np.array([2e6, 1.0, 5.0, 2.0])),  # one element decides
        (np.zeros((4, 4)), np.ones((4, 4))),
    ],
)
def test_a_factor_is_not_claimed_where_anything_would_fit(expected, found):
    assert cause(expected, found).label not in ("scale", "offset", "channel-scale")
    assert [*scale(drift(expected, found)), *offset(drift(expected, found))] == []


def test_few_rows_do_not_make_a_channel_scale():
    x = numbers(4, 32)
    assert cause(x, x * numbers(32, seed=3)).label != "channel-scale"


def test_noise_is_no_scale():
    said = cause(X, X + 0.05 * numbers(4, 16, 64, seed=5))
    assert said.label == "unknown"


@pytest.mark.parametrize("found", [numbers(4, 16, 64, seed=7), np.zeros_like(X), np.full_like(X, np.nan)])
def test_unrelated_tensors_fit_no_change_of_every_element(found):
    assert cause(X, found).label not in ("scale", "offset", "channel-scale", "clamp")


def test_a_relu_is_no_clamp():
    assert cause(X, np.maximum(X, 0)).label == "unknown"


def test_a_tensor_that_only_meets_its_own_maximum_is_not_clamped():
    evidence = drift(X, X + np.where(numbers(4, 16, 64, seed=2) > 2, 1.0, 0.0))
    assert list(clamp(evidence)) == []
    assert list(scale(evidence)) == []


def test_in_gradients_a_factor_is_left_to_their_own_causes():
    said = cause(X, 2 * X, site=SITE._replace(phase="grad", port="weight"), table=[scale])
    assert said.label == "unknown"


def test_what_explains_as_well_and_is_more_specific_wins_over_a_factor():
    def specific(evidence):
        yield Finding("attention-scale", "the scale", evidence.expected * 2, 1)

    said = cause(X, X * 2, table=[scale, specific])
    assert (said.label, said.runner_up) == ("attention-scale", "scale")


def test_one_filter_of_a_convolution_that_is_scaled_is_named():
    weight = numbers(12, 6, 3, 3, seed=4)
    found = weight.copy()
    found[7] *= 1.5
    said = cause(weight, found, 6e-8, SITE._replace(phase="weight", port="weight"))
    assert (said.label, said.parameters["axis"], said.parameters["channels"]) == ("channel-scale", 0, [7])


def test_a_factor_next_to_one_is_not_rounded_away():
    x = numbers(20, 30)
    assert "1 + 3e-06 times" in cause(x, x * (1 + 3e-6), 1e-9).sentence
