"""Coarser numbers: shorter floats, quantisation grids, zero points, ties; and what only looks alike."""

import ml_dtypes
import numpy as np
import pytest
import torch
from tests.explain.blame import BF16, FLOAT32, SITE, cause, drift, numbers

from firstdrift.explain.relations.coarser import (
    computed_coarser,
    quantised,
    rounding_mode,
    stored_coarser,
    zero_point,
)

X = numbers(16, 24, 64)
W = numbers(128, 256)
WEIGHT = SITE._replace(phase="weight", port="weight")


def stored(x, dtype):
    return x.astype(dtype).astype(np.float64)


def symmetric(rows, bits):
    """Rows of numbers as a symmetric quantiser stores them, one step a row."""
    most = 2 ** (bits - 1) - 1
    step = (np.abs(rows).max(axis=1, keepdims=True) / most).astype(np.float32)
    return np.clip(np.round(rows / step), -most, most) * step


def asymmetric(rows, bits, shift=0):
    low, high = rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True)
    step = ((high - low) / (2**bits - 1)).astype(np.float32).astype(np.float64)
    zero = np.round(-low / step)
    return (np.clip(np.round(rows / step) + zero, 0, 2**bits - 1) - zero - shift) * step


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float16, "f16"),
        (ml_dtypes.bfloat16, "bf16"),
        (ml_dtypes.float8_e4m3fn, "f8e4m3fn"),
        (ml_dtypes.float8_e5m2, "f8e5m2"),
    ],
)
def test_a_tensor_stored_in_a_shorter_float_is_named(dtype, name):
    computed = X * (1 + 1e-7 * numbers(16, 24, 64, seed=3))  # rounding then decides some ties otherwise
    said = cause(X, lambda _: stored(computed, dtype))
    assert (said.label, said.parameters["dtype"]) == ("dtype-rounding", name), said


@pytest.mark.parametrize(
    "found", [X * 1.01, X + 1e-3, numbers(16, 24, 64, seed=5), np.round(X), stored(2 * X, np.float16), np.zeros_like(X)]
)
def test_other_changes_are_not_called_a_rounding(found):
    evidence = drift(X, lambda _: found)
    assert list(stored_coarser(evidence)) == []
    assert cause(X, lambda _: found).label != "dtype-rounding"


def test_a_reference_on_the_same_grid_says_nothing_about_the_candidate():
    x = stored(X, np.float16)
    found = x.copy()
    found[0, 0, :5] *= 2
    assert list(stored_coarser(drift(x, lambda _: found))) == []


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "f16")])
def test_a_product_of_shorter_operands_is_known_by_the_size_of_its_noise(dtype, name):
    x, w = torch.from_numpy(X), torch.from_numpy(numbers(32, 64, seed=4))
    expected = (x @ w.T).numpy()
    found = (x.to(dtype).double() @ w.to(dtype).double().T).numpy()
    said = cause(expected, found, op="Linear", inputs={"in.0": X})
    assert (said.label, said.parameters["dtype"]) == ("dtype-rounding", name)


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y * 1.0023,
        lambda y: y + 0.0023 * np.abs(y).mean(),
        lambda y: y + np.where(np.arange(24)[:, None] == 3, 0.09, 0.0),
        lambda y: y * (1 + 0.0023 * np.sign(numbers(1, 1, 64, seed=6))),
    ],
)
def test_a_difference_with_a_pattern_is_not_a_matter_of_operands(change):
    assert list(computed_coarser(drift(X, change, op="Linear"))) == []


@pytest.mark.parametrize(
    ("found", "bits", "per"),
    [
        (symmetric(W, 8), 8, "channel of axis 0"),
        (symmetric(W.T, 8).T, 8, "channel of axis 1"),
        (symmetric(W.reshape(1, -1), 8).reshape(W.shape), 8, "tensor"),
        (symmetric(W.reshape(-1, 32), 4).reshape(W.shape), 4, "group of 32"),
        (asymmetric(W.reshape(-1, 64), 4).reshape(W.shape), 4, "group of 64"),
        (asymmetric(W, 8), 8, "channel of axis 0"),
    ],
)
def test_numbers_on_a_grid_are_named_with_its_bits_and_groups(found, bits, per):
    (said,) = quantised(drift(W, lambda _: found, site=WEIGHT))
    assert (said.parameters["bits"], said.parameters["per"]) == (bits, per)
    assert cause(W, lambda _: found, site=WEIGHT).label == "quantisation"


@pytest.mark.parametrize(
    "found",
    [
        W * 1.01,
        W + 0.01,
        stored(W, np.float16),
        numbers(128, 256, seed=2),
        symmetric(W[::-1], 8),
        np.sign(W),
        np.zeros_like(W),
    ],
)
def test_other_numbers_are_not_called_quantised(found):
    assert list(quantised(drift(W, lambda _: found, site=WEIGHT))) == []


@pytest.mark.parametrize("shift", [1, -2])
def test_a_zero_point_that_is_off_is_named_with_its_steps(shift):
    rows = W.reshape(-1, 64)
    expected, found = (asymmetric(rows, 4, one).reshape(W.shape) for one in (0, shift))
    said = cause(expected, lambda _: found, site=WEIGHT)
    assert (said.label, said.parameters["steps"]) == ("zero-point", -shift)


def test_an_offset_that_is_no_whole_step_is_no_zero_point():
    rows = W.reshape(-1, 64)
    expected = asymmetric(rows, 4).reshape(W.shape)
    for shift in (0.04, 1.4):
        found = asymmetric(rows, 4, shift).reshape(W.shape)
        assert list(zero_point(drift(expected, lambda _, found=found: found, site=WEIGHT))) == []


def test_integers_that_are_all_off_by_the_same_are_a_zero_point():
    x = np.random.default_rng(0).integers(-100, 100, (32, 32)).astype(np.int8)
    said = cause(x, lambda _: (x + 3).astype(np.int8))
    assert (said.label, said.parameters["steps"]) == ("zero-point", 3)


def test_ties_that_round_otherwise_are_named():
    halves = np.random.default_rng(0).integers(-2000, 2000, (64, 64)) / 16
    even, away = np.rint(halves), np.sign(halves) * np.floor(np.abs(halves) + 0.5)
    said = cause(even.clip(-127, 127).astype(np.int8), lambda _: away.clip(-127, 127).astype(np.int8))
    assert said.label == "rounding-mode", said


@pytest.mark.parametrize("found", [lambda x: x + 1, lambda x: x * 2, lambda x: np.roll(x, 1)])
def test_integers_that_differ_by_more_than_ties_are_no_rounding_mode(found):
    x = np.random.default_rng(0).integers(-50, 50, (32, 32)).astype(np.int32)
    assert list(rounding_mode(drift(x, found))) == []


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
def test_noise_alone_is_on_no_grid(noise):
    evidence = drift(X, X, noise)
    for hypothesis in (stored_coarser, computed_coarser, quantised, zero_point):
        assert list(hypothesis(evidence)) == []
