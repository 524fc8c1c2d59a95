"""Floats made into integers otherwise: the rule of rounding, the scale, the range and the zero point are named."""

import numpy as np
import pytest
import torch
from blame import cause, drift, numbers

from firstdrift.causes.precision.quantisers import product_zero_point, quantiser

X = np.round(numbers(16, 40, seed=3) * 64) / 32  # with many ties at a scale of 1/16


def integers(x, scale=1 / 16, zero=3, rounding=np.round, low=-128, high=127):
    return np.clip(rounding(x / scale) + zero, low, high).astype(np.int8)


def said(found, x=X, **settings):
    return cause(integers(x, **settings), found, 0.0, inputs={"in.0": x})


@pytest.mark.parametrize(
    ("rule", "rounding"),
    [
        ("ties away from zero", lambda y: np.sign(y) * np.floor(np.abs(y) + 0.5)),
        ("ties upwards", lambda y: np.floor(y + 0.5)),
        ("towards zero", np.trunc),
        ("downwards", np.floor),
        ("twice, first to 1/2", lambda y: np.round(np.round(y * 2) / 2)),
    ],
)
@pytest.mark.parametrize("dtype", [np.int8, np.float64])  # floats that hold integers are no less
def test_another_rule_of_rounding_is_named(rule, rounding, dtype):
    x = numbers(16, 40, seed=3) if rule in ("towards zero", "downwards") else np.round(numbers(16, 40) * 128) / 128
    both = (integers(x).astype(dtype), integers(x, rounding=rounding).astype(dtype))
    found = cause(*both, 0.0, inputs={"in.0": x})
    assert found.label == "rounding-mode", found
    assert found.parameters["rounding"] == rule or rule.startswith("ties")


def test_integers_that_wrap_round_overflow():
    x = numbers(16, 40, seed=3) * 4
    wrapped = (np.round(x * 16) + 3).astype(np.int64).astype(np.int8)
    assert said(wrapped, x).label == "overflow"


@pytest.mark.parametrize("scale", [0.05, 1 / 12, 0.02])
def test_another_scale_is_fitted(scale):
    x = numbers(16, 40, seed=3)
    found = said(integers(x, scale=scale), x)
    assert found.label == "scale", found
    assert found.parameters["scale"] == pytest.approx(scale, rel=2e-3)


@pytest.mark.parametrize("by", [-1, 2])
def test_another_zero_point_is_no_rounding(by):
    assert said(integers(X, zero=3 + by)).label == "zero-point"


def test_requantised_sums_that_round_otherwise_are_named():
    sums = torch.randint(-40000, 40000, (16, 40), generator=torch.Generator().manual_seed(0)).numpy()
    y = sums * 0.0025
    expected, truncated = (np.clip(one, -128, 127).astype(np.int8) for one in (np.round(y), np.trunc(y)))
    assert cause(expected, truncated, 0.0, inputs={"in.0": sums}).label == "rounding-mode"
    assert list(quantiser(drift(expected, expected, 0.0, inputs={"in.0": sums}))) == []


@pytest.mark.parametrize(
    "found",
    [integers(X)[::-1], integers(X).T.reshape(16, 40), np.zeros((16, 40), np.int8), integers(-X), integers(X) // 2],
)
def test_integers_of_another_cause_are_not_explained_by_a_rule(found):
    evidence = drift(integers(X), np.ascontiguousarray(found), 0.0, inputs={"in.0": X})
    assert list(quantiser(evidence)) == []


def product(x, levels, scales, zero):
    return (x.astype(np.int64) - zero) @ levels.astype(np.int64).T * scales


X8 = np.random.default_rng(0).integers(-128, 128, (12, 24)).astype(np.int8)
LEVELS = np.random.default_rng(1).integers(-127, 128, (10, 24)).astype(np.int8)
SCALES = np.random.default_rng(2).uniform(0.5, 1.5, 10) / 300


@pytest.mark.parametrize("zero", [0, 2, 5])
def test_a_zero_point_that_is_off_in_the_sums_is_named(zero):
    weights = {"levels": LEVELS, "scales": SCALES}
    found = cause(
        product(X8, LEVELS, SCALES, 3), product(X8, LEVELS, SCALES, zero), inputs={"in.0": X8}, parameters=weights
    )
    assert (found.label, found.parameters) == ("zero-point", {"steps": zero - 3})


def test_a_bias_added_to_sums_of_integers_is_no_zero_point():
    weights = {"levels": LEVELS, "scales": SCALES}
    expected = product(X8, LEVELS, SCALES, 3)
    evidence = drift(expected, expected + numbers(10, seed=4), inputs={"in.0": X8}, parameters=weights)
    assert list(product_zero_point(evidence)) == []
