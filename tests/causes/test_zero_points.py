"""Layers that hold integers with a scale and a zero point for each group: a change to one is told by the output."""

from __future__ import annotations

import numpy as np
import pytest
from blame import FLOAT32, cause, drift, numbers

from firstdrift.causes.precision.zero_points import moved_zero_points

RNG = np.random.default_rng(8)
OUT, WIDTH, GROUPS = 10, 24, 4
X = numbers(3, 9, WIDTH, seed=1)
INTEGERS = RNG.integers(0, 16, (OUT, WIDTH)).astype(np.int32)
SCALE = RNG.uniform(0.02, 0.1, (OUT, GROUPS))
ZERO = RNG.integers(0, 16, (OUT, GROUPS)).astype(np.int32)
BIAS = numbers(OUT, seed=2)
PACKED = RNG.integers(-(2**31), 2**31, (WIDTH // 8, OUT)).astype(np.int32)  # whatever is in it
HELD = {
    "plain": {"integers": INTEGERS, "steps": SCALE, "zeros": ZERO, "bias": BIAS},
    "turned": {"integers": INTEGERS.T.copy(), "steps": SCALE.T.copy(), "zeros": ZERO.T.copy(), "bias": BIAS},
    "packed": {"integers": PACKED, "steps": SCALE.T.copy(), "zeros": PACKED[:, :2], "bias": BIAS},
}


def layer(zero=ZERO, scale=SCALE, bias=BIAS, x=X, integers=INTEGERS):
    wide = [np.repeat(np.broadcast_to(one, (OUT, GROUPS)), WIDTH // GROUPS, axis=1) for one in (zero, scale)]
    return x @ ((integers - wide[0]) * wide[1]).T + bias


def said(found, held="plain", x=X, expected=None, noise=FLOAT32):
    expected = layer(x=x) if expected is None else expected
    return cause(expected, found, noise, inputs={"in.0": x}, parameters=HELD[held], op="Packed")


STRIDED = np.concatenate((ZERO.ravel()[::2], np.zeros(ZERO.size // 2, int))).reshape(ZERO.shape)
WRONG = {
    "another stride": STRIDED,
    "nothing read as the largest": np.where(ZERO == 0, 15, ZERO),
    "one below, wrapped": (ZERO - 1) % 16,
    "one group": ZERO + np.eye(OUT, GROUPS, dtype=int)[[3] * OUT] * (np.arange(OUT) == 3)[:, None],
    "turned": ZERO.reshape(GROUPS, OUT).T,
}


@pytest.mark.parametrize("noise", [FLOAT32, 1e-5])
@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("zero", WRONG.values(), ids=WRONG)
def test_zero_points_that_are_read_otherwise_are_told_though_they_be_packed(zero, held, noise):
    found = said(layer(zero=zero), held, noise=noise)
    assert found.label == "zero-point", found
    assert set(found.parameters["steps"]) <= set(np.unique(zero - ZERO).tolist()), found


def test_what_a_zero_point_is_read_as_is_said():
    assert "0 is read as 15" in said(layer(zero=np.where(ZERO == 0, 15, ZERO))).sentence


@pytest.mark.parametrize("held", ["plain", "turned"])
@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("zero-point", layer(zero=ZERO + 1)),
        ("zero-point", layer(zero=0)),
        ("zero-point", layer(zero=-ZERO)),
        ("channel-scale", layer(scale=SCALE.mean())),
        ("index-shift", layer(scale=np.roll(SCALE, 1, axis=0))),
        ("scale", layer(scale=1.0)),
    ],
)
def test_one_change_to_all_groups_is_named(label, found, held):
    assert said(found, held).label == label


OTHERS = {
    "no bias": (layer(bias=0.0), "missing-bias"),
    "a factor": (1.1 * layer(), "scale"),
    "another scale in one group": (layer(scale=SCALE * np.where(np.arange(GROUPS) == 1, 1.5, 1.0)), None),
    "zero points of half a step": (layer(zero=ZERO + 0.5 * (np.arange(GROUPS) == 1)), None),
    "other integers": (layer(integers=np.roll(INTEGERS, 1, axis=1)), None),
    "noise": (layer() + 0.1 * numbers(3, 9, OUT, seed=5), None),
}


@pytest.mark.parametrize(("found", "label"), OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("held", HELD)
def test_what_else_is_done_is_not_blamed_on_zero_points(found, label, held):
    given = {"inputs": {"in.0": X}, "parameters": HELD[held]}
    assert list(moved_zero_points(drift(layer(), found, **given))) == []
    cause_of = said(found, held).label
    assert cause_of != "zero-point"
    assert label is None or held == "packed" or cause_of == label


@pytest.mark.parametrize(
    "x",
    [
        X[:1, :6],  # too few rows
        np.tile(X[:1, :1], (3, 9, 1)),  # all alike
        (y := X.reshape(3, 9, GROUPS, -1)) - y.mean(-1, keepdims=True),  # groups that sum to nothing
    ],
)
def test_inputs_that_tell_no_groups_apart_tell_no_zero_points(x):
    x = x.reshape(*x.shape[:2], WIDTH)
    given = {"inputs": {"in.0": x}, "parameters": HELD["packed"]}
    wrong = layer(zero=STRIDED, x=x) + 1e-9 * numbers(*x.shape[:2], OUT)
    assert list(moved_zero_points(drift(layer(x=x), wrong, **given))) == []


def test_groups_that_are_fed_alike_are_not_told_apart():
    x = np.tile(X[..., : WIDTH // 2], 2)
    scale = np.full((OUT, GROUPS), 0.5)
    wrong = ZERO + 2 * (np.arange(GROUPS) == 0)  # as if it were one step in each of two groups
    expected, found = (layer(zero=zero, scale=scale, x=x) for zero in (ZERO, wrong))
    held = {"integers": PACKED, "steps": scale}
    assert list(moved_zero_points(drift(expected, found, inputs={"in.0": x}, parameters=held))) == []


def test_weights_that_are_no_integers_have_no_zero_points():
    held = {"weight": numbers(OUT, WIDTH), "steps": SCALE}
    given = {"inputs": {"in.0": X}, "parameters": held}
    assert list(moved_zero_points(drift(layer(), layer(zero=STRIDED), **given))) == []
