"""Weights that are right in part, or read otherwise from memory, or whole steps off."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from test_weights import evidence_of, other, weight

from firstdrift.causes.hypotheses import explain
from firstdrift.causes.weight import weights


def said_of(expected, found, others=None, noise=1e-9):
    return explain(evidence_of(expected, found, noise, others=others), weights.HYPOTHESES)


def read_as(array, stored, read, fill=0.0):
    numbers = array.astype(np.float32).astype(stored).ravel().view(np.uint8).view(read).astype(np.float64)
    whole = np.full(array.size, fill)
    whole[: len(numbers)] = numbers[: array.size]
    return whole.reshape(array.shape)


BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("stored", "read", "words"),
    [
        (BF16, np.float32, "bf16 numbers are read as f32"),
        (np.float16, np.float32, "f16 numbers are read as f32"),
        (np.float16, BF16, "f16 numbers are read as bf16"),
        (BF16, np.float16, "bf16 numbers are read as f16"),
        (np.float32, BF16, "f32 numbers are read as bf16"),
        (np.float32, np.dtype(">f4"), "f32 numbers are read as f32 of the other byte order"),
    ],
)
@pytest.mark.parametrize("fill", [0.0, 1.0])
def test_bytes_read_as_another_dtype_are_told(stored, read, words, fill):
    expected = weight(12, 20)
    with np.errstate(all="ignore"):
        said = said_of(expected, read_as(expected, stored, read, fill))
    assert said.label == "wrong-weight", said
    assert words in said.sentence


@pytest.mark.parametrize("stride", [2, 3, 7])
def test_every_nth_number_with_nothing_after_them_is_told(stride):
    expected = weight(20, 21)
    found = np.zeros(420)
    found[: len(range(0, 420, stride))] = expected.ravel()[::stride]
    said = said_of(expected, found.reshape(20, 21))
    assert (said.label, said.parameters) == ("wrong-weight", {"start": 0, "stride": stride}), said


@pytest.mark.parametrize(("start", "label"), [(3, "wrong-weight"), (16, "index-shift"), (48, "index-shift")])
def test_numbers_read_from_a_later_place_are_told(start, label):
    expected = weight(24, 16)
    found = np.concatenate([expected.ravel()[start:], weight(start, seed=4)]).reshape(24, 16)
    said = said_of(expected, found)
    assert said.label == label, said


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("cut", [8, 16, 20])
def test_two_tensors_split_at_the_wrong_place_are_exchanged_in_part(axis, cut):
    gate, up = weight(24, 24), weight(24, 24, seed=1)
    mine = np.concatenate([gate[:cut], up[: 24 - cut]])
    theirs = np.concatenate([gate[cut:], up[24 - cut :]])
    given = [one if axis == 0 else one.T for one in (gate, mine, up, theirs)]
    said = said_of(given[0], given[1], other("layers.0.mlp.up", given[2], given[3]))
    assert said.label == "weight-swap", said
    what = "rows" if axis == 0 else "columns"
    assert f"{what} {cut} to 23 are {what} 0 to {23 - cut} of layers.0.mlp.up.weight" in said.sentence


def test_rows_of_another_tensor_that_lost_nothing_are_a_wrong_weight():
    a, b = weight(24, 16), weight(30, 16, seed=1)
    said = said_of(a, np.concatenate([a[:10], b[4:18]]), other("layers.0.mlp.up", b))
    assert said.label == "wrong-weight", said
    assert "rows 10 to 23 are rows 4 to 17 of layers.0.mlp.up.weight" in said.sentence


def test_rows_are_traced_through_the_rounding_of_storage():
    a, b = weight(24, 16), weight(24, 16, seed=1)
    found = np.concatenate([a[:10], b[:14]]).astype(np.float32).astype(BF16).astype(np.float64)
    assert said_of(a, found, other("layers.0.mlp.up", b), noise=2.0**-9).label == "wrong-weight"


@pytest.mark.parametrize(
    "change", [lambda w: 1.01 * w, lambda w: w + 0.1 * weight(24, 16, seed=2), lambda w: w[:, ::-1], lambda w: w[::-1]]
)
def test_rows_of_its_own_are_not_taken_for_those_of_others(change):
    a = weight(24, 16)
    said = said_of(a, change(a), other("layers.0.mlp.up", weight(24, 16, seed=1)))
    assert said.label not in ("wrong-weight", "weight-swap"), said


def quantised(array, axis, size, levels=15, zero=0, dropped=False):
    lines = np.moveaxis(array, axis, -1)
    groups = lines.reshape(*lines.shape[:-1], -1, size)
    low, high = np.minimum(groups.min(-1, keepdims=True), 0), np.maximum(groups.max(-1, keepdims=True), 0)
    step = (high - low) / levels
    zeros = np.round(-low / step)
    integers = np.clip(np.round(groups / step) + zeros, 0, levels)
    made = (integers - (0 if dropped else zeros + zero)) * step
    return np.moveaxis(made.reshape(lines.shape), -1, axis).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("levels", [15, 255])
@pytest.mark.parametrize(
    ("shape", "axis", "size"),
    [
        ((24, 40), 1, 8),
        ((24, 40), 0, 8),
        ((24, 40), 1, 40),
        ((32, 24), 0, 32),
        ((3, 16, 24), 1, 8),
        ((4, 6, 24), 2, 12),
    ],
)
@pytest.mark.parametrize("zero", [1, -1, 2, None])
def test_zero_points_of_any_grouping_are_told(shape, axis, size, zero, levels):
    w = weight(*shape)
    found = quantised(w, axis, size, levels, zero or 0, dropped=zero is None)
    said = said_of(quantised(w, axis, size, levels), found, noise=2.0**-24)
    assert said.label == "zero-point", said
    if zero is not None:
        assert said.parameters["steps"] == -zero


@pytest.mark.parametrize(
    "found",
    [
        lambda w: w + 0.1,
        lambda w: w + 0.1 * weight(24, 1, seed=1),
        lambda w: w + 0.1 * weight(24, 5, seed=1).repeat(8, 1),
        lambda w: w + 0.1 * weight(3, 40, seed=1).repeat(8, 0),
    ],
)
@pytest.mark.parametrize("noise", [1e-9, 1e-7, 3e-3])
def test_constants_beside_numbers_on_no_grid_are_no_zero_points(found, noise):
    expected = weight(24, 40)
    assert said_of(expected, found(expected), noise=noise).label != "zero-point"


def test_zero_points_are_told_through_the_rounding_of_storage():
    w = weight(24, 40)
    stored = [quantised(w, 1, 8, 15, zero).astype(np.float32).astype(BF16).astype(np.float64) for zero in (0, 1)]
    said = said_of(*stored, noise=2.0**-8)
    assert (said.label, said.parameters["steps"]) == ("zero-point", -1), said
