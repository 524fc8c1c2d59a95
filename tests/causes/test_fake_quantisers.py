"""Floats rounded to whole steps: another rule of rounding is named, and other differences are not called one."""

import numpy as np
import pytest
from blame import cause, drift, numbers

from firstdrift.causes.precision.fake_quantisers import fake_quantiser

X = numbers(12, 20, 30, seed=3)
STEP = 0.05
PER_CHANNEL = np.linspace(0.03, 0.09, 30)


def away(y):
    return np.sign(y) * np.floor(np.abs(y) + 0.5)


def up(y):
    return np.floor(y + 0.5)


def twice(parts):
    return lambda y: np.round(np.round(y * parts) / parts)


def quantised(x, step=STEP, rounding=np.round, low=-40, high=40):
    return np.clip(rounding(x / step), low, high) * step


@pytest.mark.parametrize("noise", [1e-9, 1e-7])
@pytest.mark.parametrize("step", [STEP, 1 / 32, PER_CHANNEL, PER_CHANNEL[:20, None]])
@pytest.mark.parametrize(
    ("rule", "rounding"),
    [
        ("twice, first to 1/16", twice(16)),
        ("twice, first to 1/4", twice(4)),
        ("downwards", np.floor),
        ("towards zero", np.trunc),
        ("upwards", np.ceil),
    ],
)
def test_another_rule_of_rounding_to_a_grid_is_named(rule, rounding, step, noise):
    said = cause(quantised(X, step), quantised(X, step, rounding), noise, inputs={"in.0": X})
    assert (said.label, said.parameters["rounding"]) == ("rounding-mode", rule), said


@pytest.mark.parametrize(("rounding", "reference"), [(away, np.round), (up, np.round), (np.round, away)])
def test_ties_are_told_by_numbers_that_are_ties(rounding, reference):
    ties = np.round(X * 40) / 40  # half steps of a twentieth
    ties = np.where(np.abs(ties) < 1, ties, X)
    said = cause(quantised(ties, 1 / 20, reference), quantised(ties, 1 / 20, rounding), 1e-9, inputs={"before": ties})
    assert said.label == "rounding-mode", said


def test_rounding_twice_by_a_grid_that_is_no_power_of_two_is_seen_at_ties():
    said = cause(quantised(X), quantised(X, rounding=twice(10)), 1e-9, inputs={"in.0": X})
    assert said.label == "rounding-mode", said
    assert "near a tie" in said.sentence


def shaken(x):
    return x + 0.1 * STEP * numbers(*x.shape, seed=8)


@pytest.mark.parametrize(
    "found",
    [
        quantised(X, STEP * 1.01),  # another scale
        quantised(shaken(X)),  # noise before
        quantised(X * 1.02),
        quantised(X) + STEP,  # another zero point
        quantised(X, high=30),  # another range
        quantised(X)[::-1].copy(),
        quantised(np.abs(X)),
        quantised(X, 2 * STEP),
    ],
)
def test_what_is_no_other_rule_of_rounding_is_not_called_one(found):
    evidence = drift(quantised(X), found, 1e-9, inputs={"in.0": X})
    assert list(fake_quantiser(evidence)) == []
    assert cause(quantised(X), found, 1e-9, inputs={"in.0": X}).label != "rounding-mode"


@pytest.mark.parametrize("x", [X, np.zeros_like(X), np.full_like(X, np.nan), X[:1, :1, :3]])
def test_what_lies_on_no_grid_is_left_alone(x):
    assert list(fake_quantiser(drift(x, x + 1e-3, 1e-9, inputs={"in.0": x}))) == []
