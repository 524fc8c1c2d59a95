"""Weights that are another state of the same tensor are told as that; whatever has a rule is not."""

import numpy as np
import pytest
from blame import Run, cause, drift, numbers

from firstdrift.causes.weight.weight_copies import perturbed_copy
from firstdrift.sites import Site

SITE = Site(0, "weight", "layers.1.part", "weight")
MATRIX = numbers(40, 48, seed=1) * 0.1
GAIN = 1 + 0.2 * numbers(32, seed=2)
NOISE = 6e-8


@pytest.mark.parametrize("weight", [MATRIX, GAIN, numbers(8, 4, 3, 3)])
@pytest.mark.parametrize("size", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("relative", [True, False])
def test_a_copy_that_is_off_at_random_is_another_state_of_the_tensor(weight, size, relative):
    usual = np.abs(weight) if relative else np.sqrt(np.mean(weight**2))
    said = cause(weight, weight + size * usual * numbers(*weight.shape, seed=7), NOISE, SITE)
    assert said.label == "wrong-weight", said
    assert "random" in said.sentence
    assert said.confidence < 0.5


def test_it_is_told_whether_other_weights_differ_too():
    other = Site(0, "weight", "layers.2.part", "weight")
    found = MATRIX + 0.01 * numbers(40, 48, seed=7)
    said = cause(MATRIX, found, NOISE, SITE, around=Run({SITE: MATRIX, other: GAIN}))
    assert "other weights agree" in said.sentence
    said = cause(MATRIX, found, NOISE, SITE, around=Run({SITE: MATRIX, other: GAIN}, {other: GAIN[::-1]}))
    assert "1 of 1 others differ too" in said.sentence


def int4(x, group=16):
    rows = x.reshape(-1, group)
    step = np.abs(rows).max(1, keepdims=True) / 7
    return (np.round(rows / step + 0.3) * step).reshape(x.shape)


def some_rows(x):
    found = x.copy()
    found[3] += 0.1 * numbers(*x[3].shape, seed=5)
    return found


@pytest.mark.parametrize(
    "found",
    [
        MATRIX * 1.1,
        MATRIX + 0.01,
        MATRIX * np.linspace(0.8, 1.2, 48),  # by channels
        int4(MATRIX),
        some_rows(MATRIX),
        np.where(numbers(40, 48, seed=3) > 0, MATRIX, 0),  # pruned
        MATRIX * (1 + 1e-3 * numbers(40, 48, seed=4)),  # no more than rounding does
        numbers(40, 48, seed=6) * 0.1,
        np.tanh(MATRIX * 5) / 5,
        np.full_like(MATRIX, np.nan),
    ],
)
def test_what_has_a_rule_or_is_small_is_no_such_copy(found):
    assert list(perturbed_copy(drift(MATRIX, found, NOISE, SITE))) == []


def test_a_table_of_other_frequencies_is_no_such_copy():
    ours, theirs = (base ** (-np.arange(0, 64, 2) / 64) for base in (10000.0, 8000.0))
    assert list(perturbed_copy(drift(ours, theirs, NOISE, SITE))) == []


def test_a_rule_that_is_found_comes_before():
    rotated = np.roll(MATRIX, 1, axis=0)
    assert cause(MATRIX, rotated, NOISE, SITE).label == "index-shift"
