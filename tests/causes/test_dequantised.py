"""Layers that hold their weights as integers: what is done to these is told by the layer's output."""

import numpy as np
import pytest
from blame import FLOAT32, cause, numbers

RNG = np.random.default_rng(8)
OUT, WIDTH = 10, 14
X = numbers(3, 5, WIDTH, seed=1)
INTEGERS = RNG.integers(-90, 90, (OUT, WIDTH)).astype(np.int8)
SCALE = RNG.uniform(0.002, 0.01, OUT)
ZERO = RNG.integers(-9, 9, OUT).astype(np.int32)
BIAS = numbers(OUT, seed=2)


def layer(integers=INTEGERS, scale=SCALE, zero=ZERO, bias=BIAS):
    weights = (integers.astype(float) - np.reshape(zero, (-1, 1))) * np.reshape(scale, (-1, 1))
    return X @ weights.T + bias


def said(found, expected=None, noise=FLOAT32, **held):
    """The cause of a drift in the output of a layer that holds some tensors."""
    held = held or {"packed": INTEGERS, "steps": SCALE, "zeros": ZERO, "bias": BIAS}
    expected = layer() if expected is None else expected
    return cause(expected, found, noise, inputs={"in.0": X}, parameters=held, op="Packed")


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("zero-point", layer(zero=ZERO + 1)),
        ("zero-point", layer(zero=ZERO - 1)),
        ("zero-point", layer(zero=0)),
        ("zero-point", layer(zero=-ZERO)),
        ("zero-point", layer(zero=ZERO / SCALE)),
        ("zero-point", layer(zero=ZERO[0])),
        ("channel-scale", layer(scale=SCALE.mean())),
        ("channel-scale", layer(scale=SCALE.max())),
        ("channel-scale", layer(scale=SCALE[0])),
        ("index-shift", layer(scale=np.roll(SCALE, 1))),
        ("scale", layer(scale=1.0)),
    ],
)
@pytest.mark.parametrize("noise", [FLOAT32, 1e-4])
def test_one_change_to_how_integers_become_weights_is_named(label, found, noise):
    assert said(found, noise=noise).label == label


@pytest.mark.parametrize(
    "held",
    [
        {"qweight": INTEGERS, "scales": SCALE[:, None], "zero_point": ZERO[:, None].astype(float)},
        {"qweight": INTEGERS.T.copy(), "scale": SCALE, "zp": ZERO, "unused": np.ones((3, 3))},
    ],
)
def test_the_tensors_of_a_layer_are_found_by_what_they_are(held):
    expected = layer(bias=0.0)
    assert said(layer(bias=0.0, zero=ZERO + 1), expected, **held).label == "zero-point"
    assert said(layer(bias=0.0, scale=SCALE.mean()), expected, **held).label == "channel-scale"


def test_weights_without_zero_points_get_one_by_mistake():
    held = {"packed": INTEGERS, "steps": SCALE, "bias": BIAS}
    assert said(layer(zero=1), layer(zero=0), **held).label == "zero-point"


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("missing-bias", layer(bias=0.0)),
        ("unknown", layer() + 0.3 * np.sin(7 * layer())),
        ("unknown", layer(integers=RNG.integers(-90, 90, (OUT, WIDTH)))),
    ],
)
def test_what_is_done_to_something_else_is_not_blamed_on_the_integers(label, found):
    assert said(found).label == label


def test_a_reference_that_is_no_such_layer_is_left_alone():
    expected = np.tanh(layer())
    assert said(np.tanh(layer(zero=ZERO + 1)), expected).label != "zero-point"
