"""Gated products whose factors one side keeps within a limit."""

import numpy as np
import pytest
from blame import BF16, FLOAT32, SITE, blurred, cause, drift, numbers

from firstdrift.causes.activations.clamped_gates import clamped_gate

IN = SITE._replace(name="layers.0.mlp.down", port="in.0")
G, U = 2 * numbers(2, 9, 32, seed=1), 2 * numbers(2, 9, 32, seed=2)


def silu(x):
    return x / (1 + np.exp(-x))


def kept(g, u, bound=1.25):
    return silu(np.minimum(g, bound)) * np.clip(u, -bound, bound)


PACKED = {"gate_up": np.concatenate((G, U), -1)}
APART = {"gate": G, "up": U}


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("inputs", [PACKED, APART])
def test_factors_that_the_candidate_keeps_within_a_limit_are_clamped(inputs, noise):
    said = cause(silu(G) * U, blurred(kept(G, U), noise / 4), noise / 4, IN, inputs=inputs)
    assert said.label == "clamp", said
    assert said.parameters["limit"] == pytest.approx(1.25, rel=1e-2)


def test_a_limit_that_the_candidate_does_not_keep_is_named():
    said = cause(kept(G, U), silu(G) * U, FLOAT32, IN, inputs=PACKED)
    assert (said.label, said.parameters["reference_limit"]) == ("clamp", pytest.approx(1.25, rel=1e-4))


def test_a_gate_alone_may_be_clamped():
    said = cause(silu(G) * U, silu(np.minimum(G, 1.25)) * U, FLOAT32, IN, inputs=APART)
    assert (said.label, said.parameters["limit"]) == ("clamp", pytest.approx(1.25, rel=1e-4))


@pytest.mark.parametrize(
    "found",
    [silu(U) * G, G * U, silu(G) * U * 0.9, numbers(2, 9, 32, seed=7), np.zeros((2, 9, 32)), silu(G) * np.abs(U)],
)
def test_a_gate_that_is_wrong_otherwise_is_not_clamped(found):
    assert list(clamped_gate(drift(silu(G) * U, found, FLOAT32, IN, inputs=APART))) == []
