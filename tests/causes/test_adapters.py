"""The factor of a low-rank term inside a linear map is told; other differences of low rank are not called so."""

import math

import numpy as np
import pytest
from blame import cause, drift, numbers

from firstdrift.causes.adapters import adapter_scale

X, WEIGHT, BIAS = numbers(3, 10, 16), 0.3 * numbers(24, 16, seed=1), 0.3 * numbers(24, seed=2)
DOWN, UP = 0.3 * numbers(4, 16, seed=3), 0.3 * numbers(24, 4, seed=4)
HELD = {"weight": WEIGHT, "bias": BIAS, "A": DOWN, "B": UP}
TURNED = {"weight": WEIGHT, "bias": BIAS, "lora_a": DOWN.T.copy(), "lora_b": UP.T.copy()}
UNBIASED = {"weight": WEIGHT, "A": DOWN, "B": UP}


def layer(scale, x=X, bias=True, down=DOWN, up=UP):
    return x @ WEIGHT.T + (BIAS if bias else 0) + scale * (x @ down.T @ up.T)


def said(expected, found, held=HELD, noise=1e-6):
    return cause(expected, found, noise, inputs={"in.0": X}, parameters=held, op="LoraLinear")


@pytest.mark.parametrize("held", [HELD, TURNED, UNBIASED])
@pytest.mark.parametrize(("ours", "theirs"), [(4.0, 2.0), (2.0, 4.0), (2.0, 8.0), (0.5, 0.7), (1.0, -1.0)])
def test_another_factor_of_the_term_is_told(ours, theirs, held):
    bias = "bias" in held
    told = said(layer(ours, bias=bias), layer(theirs, bias=bias), held)
    assert told.label == "scale", told
    assert told.parameters["factor"] == pytest.approx(theirs, rel=1e-4)
    assert told.parameters["reference_factor"] == pytest.approx(ours, rel=1e-4)


def test_a_factor_that_is_a_power_of_the_rank_is_called_so():
    alpha, rank = 8, 4
    assert "over the root of the rank, 4" in said(layer(alpha / math.sqrt(rank)), layer(alpha / rank)).sentence
    assert "times the rank, 4" in said(layer(alpha / rank), layer(alpha)).sentence


@pytest.mark.parametrize(("ours", "theirs"), [(2.0, 0.0), (0.0, 2.0)])
def test_a_term_that_one_side_lacks_is_a_missing_term(ours, theirs):
    assert said(layer(ours), layer(theirs)).label == "missing-term"


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(1.5 * layer(2.0), id="all of it scaled"),
        pytest.param(layer(2.0, bias=False), id="no bias"),
        pytest.param(layer(2.0, up=UP[:, ::-1]), id="the rank's numbers in another order"),
        pytest.param(layer(2.0, down=0.3 * numbers(4, 16, seed=8)), id="another matrix"),
        pytest.param(layer(2.0) + X @ numbers(16, 1, seed=8) @ numbers(1, 24, seed=9), id="another term of low rank"),
        pytest.param(layer(2.0, np.tanh(X)), id="another input"),
        pytest.param(layer(2.0) + 0.01 * numbers(3, 10, 24, seed=8), id="anything"),
    ],
)
def test_other_differences_are_not_called_so(found):
    evidence = drift(layer(2.0), found, 1e-6, inputs={"in.0": X}, parameters=HELD, op="LoraLinear")
    assert list(adapter_scale(evidence)) == []
