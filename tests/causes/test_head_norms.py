"""Norms of queries and keys: of each head or of all, with a weight for a head or for all, however the axes lie."""

from __future__ import annotations

import numpy as np
import pytest
from blame import BF16, FLOAT32, cause, drift, numbers

from firstdrift.causes.norm.norms import norm

B, H, T, D = 2, 3, 5, 8
EPS = 1e-6


def normed(x, axes, weight, kind="rms", bias=0.0):
    """A norm over some axes, with a weight that meets its input."""
    x = x - x.mean(axes, keepdims=True) if kind == "layer" else x
    squares = np.square(x)
    return x / np.sqrt((squares.sum if kind == "length" else squares.mean)(axes, keepdims=True) + EPS) * weight + bias


# heads before or after the tokens, or heads and channels in one axis
ORDERS = {"heads first": (B, H, T, D), "heads later": (B, T, H, D), "no batch": (H, T, D)}
HEAD_AXIS = {"heads first": 1, "heads later": 2, "no batch": 0}
GAIN = 1 + 0.2 * numbers(H * D, seed=1)


def gain(order):
    return GAIN.reshape((H, 1, D) if HEAD_AXIS[order] < len(ORDERS[order]) - 2 else (H, D))


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("name", ["weight", "g_of_q"])
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shared", [True, False])
def test_a_norm_over_all_heads_and_one_of_each_are_told_apart(shared, order, kind, name, noise):
    x = 2 * numbers(*ORDERS[order], seed=2) * np.exp(numbers(*ORDERS[order][:-1], 1, seed=3)) + 0.3
    ways = [normed(x, axes, gain(order), kind) for axes in ((-1,), (HEAD_AXIS[order], -1))]
    expected, found = ways if shared else ways[::-1]
    said = cause(expected, found, noise, inputs={"in.0": x}, parameters={name: GAIN})
    assert said.label == "norm-axis", said


@pytest.mark.parametrize("kind", ["rms", "layer", "length"])
@pytest.mark.parametrize("order", ["heads first", "heads later"])
@pytest.mark.parametrize("shared", [True, False])
def test_norms_without_a_weight_are_told_apart(shared, order, kind):
    x = numbers(*ORDERS[order], seed=2) * np.exp(numbers(*ORDERS[order][:-1], 1, seed=3)) + 0.3
    ways = [normed(x, axes, 1.0, kind) for axes in ((-1,), (HEAD_AXIS[order], -1))]
    expected, found = ways if shared else ways[::-1]
    assert cause(expected, found, inputs={"in.0": x}).label == "norm-axis"


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize(("ours", "theirs"), [(H, 1), (1, H), (H, 2 * H)])
def test_heads_within_the_last_axis_are_told_apart_with_a_weight_for_all(ours, theirs, kind):
    x = numbers(B, T, H * D, seed=2) * np.exp(numbers(B, T, 1, seed=3)) + 0.3
    x = (x.reshape(B, T, H, D) * np.exp(numbers(B, T, H, 1, seed=4))).reshape(x.shape)

    def within(groups):
        return normed(x.reshape(B, T, groups, -1), (-1,), 1.0, kind).reshape(x.shape) * GAIN

    said = cause(within(ours), within(theirs), inputs={"in.0": x}, parameters={"weight": GAIN})
    assert (said.label, said.parameters["groups"]) == ("norm-axis", theirs), said


@pytest.mark.parametrize(
    ("change", "label"),
    [
        (lambda y: 1.25 * y, "scale"),
        (lambda y: y * np.exp(numbers(B, H, T, 1, seed=6)), "unknown"),  # a factor of its own for every row
        (lambda y: y + 0.3 * numbers(*y.shape, seed=6), "unknown"),
    ],
)
def test_what_is_done_to_a_norm_of_heads_is_not_called_its_axis(change, label):
    x = numbers(B, H, T, D, seed=2)
    expected = normed(x, (-1,), gain("heads first"))
    said = cause(expected, change(expected), inputs={"in.0": x}, parameters={"weight": GAIN})
    assert said.label == label, said


@pytest.mark.parametrize("made", [np.tanh, np.abs, lambda x: x * numbers(D, seed=5), lambda x: np.cumsum(x, -2)])
def test_what_is_no_norm_is_not_read_as_one(made):
    x = numbers(B, H, T, D, seed=2)
    given = {"inputs": {"in.0": x}, "parameters": {"w": numbers(D, seed=5)}}
    assert list(norm(drift(made(x), 1.1 * made(x), **given))) == []
