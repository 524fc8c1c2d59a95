"""Values that no formula gives: each kind is told from the others, and from masks, ReLUs and factors."""

import numpy as np
import pytest
import torch
from tests.explain.blame import BF16, FLOAT32, SITE, cause, drift, numbers
from torch.nn import functional as F  # noqa: N812

from firstdrift.explain.relations.integrity import dropout_active, nan_origin, overflow, uninitialised

X = numbers(8, 20, 32)


def dropped(x, p, seed=0):
    torch.manual_seed(seed)
    return F.dropout(torch.from_numpy(x), p).numpy()


def blanked(x, index, value=0.0):
    y = x.copy()
    y[index] = value
    return y


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_is_named_with_its_probability(p, noise):
    said = cause(X, lambda x: dropped(x, p), noise)
    assert said.label == "dropout-active", said
    assert said.parameters["p"] == pytest.approx(p, rel=0.05)


def test_dropout_of_whole_channels_is_named():
    torch.manual_seed(0)
    x = numbers(8, 16, 5, 5)
    assert cause(x, F.dropout2d(torch.from_numpy(x), 0.25).numpy()).label == "dropout-active"


@pytest.mark.parametrize(
    "found",
    [
        np.maximum(X, 0),
        blanked(X, np.s_[:, 3:]),
        2 * blanked(X, np.s_[:, :10]),
        np.where(numbers(8, 20, 32, seed=3) > 0, X, 0.0),  # a mask, without the factor
        X * 1.25,
    ],
)
def test_zeros_of_other_origin_are_not_dropout(found):
    assert list(dropout_active(drift(X, found))) == []
    assert cause(X, found).label != "dropout-active"


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    "found",
    [
        blanked(X, np.s_[2]),
        blanked(X, np.s_[:, 17:]),
        blanked(X, np.s_[:, :, 8:16]),
        blanked(X, np.s_[...]),
        blanked(X, np.s_[3, 4:6], 1e-42),
        blanked(X, np.s_[3, 4:6], 1e20),
    ],
)
def test_blocks_that_nobody_wrote_are_named(found, noise):
    assert cause(X, found, noise).label == "uninitialised"


@pytest.mark.parametrize(
    "found", [np.maximum(X, 0), dropped(X, 0.5), X * 0.5, np.where(numbers(8, 20, 32, seed=3) > 0, X, 0.0), 3e3 * X]
)
def test_other_values_are_not_called_unwritten(found):
    assert list(uninitialised(drift(X, found))) == [] or cause(X, found).label != "uninitialised"


def test_a_gradient_of_zero_is_left_to_the_causes_of_gradients():
    evidence = drift(X, np.zeros_like(X), site=SITE._replace(phase="grad", port="weight"))
    assert list(uninitialised(evidence)) == []


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
def test_what_is_too_large_for_a_half_is_an_overflow(noise):
    x = X * 3e4
    found = torch.from_numpy(x).half().double().numpy()
    assert np.isinf(found).any()
    said = cause(x, found, noise)
    assert (said.label, said.parameters["dtype"]) == ("overflow", "f16")


def test_infinities_that_have_nothing_to_do_with_size_are_no_overflow():
    x = X * 3e4
    assert list(overflow(drift(x, blanked(x, np.s_[1, 2, 3], np.inf)))) == []


def test_a_nan_is_traced_to_where_what_it_came_from_is_finite():
    said = cause(X, blanked(X, np.s_[1, 2], np.nan), inputs={"in.0": X})
    assert (said.label, said.parameters["first"]) == ("nan-origin", [1, 2, 0])


def test_a_nan_that_came_in_is_not_made_here():
    evidence = drift(X, blanked(X, np.s_[1, 2], np.nan), inputs={"in.0": X}, candidate_inputs={"in.0": X * np.nan})
    assert list(nan_origin(evidence)) == []


def test_a_nan_on_both_sides_is_no_origin():
    assert list(nan_origin(drift(X * np.nan, X * np.nan))) == []


@pytest.mark.parametrize(("dtype", "size"), [(np.float16, 3e4), (np.float16, 9e4)])
def test_a_product_of_short_operands_that_overflows_is_told_through_its_rounding(dtype, size):
    x, w = numbers(6, 20, 32, seed=1), size / 6 * numbers(24, 32, seed=2)
    short = x.astype(dtype).astype(np.float64) @ w.astype(dtype).astype(np.float64).T
    with np.errstate(over="ignore"):
        found = short.astype(dtype).astype(np.float64)
    said = cause(x @ w.T, lambda _: found, 1e-9, op="Linear", inputs={"in.0": x})
    assert (said.label, said.parameters["dtype"]) == ("overflow", "f16"), said


def test_infinities_beside_a_bound_are_no_overflow():
    x = 3e4 * numbers(6, 20, 24)
    found = np.where(np.abs(x) > 5e4, np.inf, x)
    assert cause(x, lambda _: found, inputs={"in.0": x}).label != "overflow"
