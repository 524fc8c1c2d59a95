"""A gated product whose activation is a module: the factors exchanged before it, whole tensors or halves of one."""

import numpy as np
import pytest
from blame import FLOAT32, Run, blurred, cause, numbers

from firstdrift.sites import Site

GATE, UP, FUSED = (Site(0, "fwd", f"layers.1.mlp.{name}", "out") for name in ("w1", "w3", "w13"))
ACT, ACTIVATED = (Site(0, "fwd", "layers.1.mlp.act", port) for port in ("in.0", "out"))
DOWN = Site(0, "fwd", "layers.1.mlp.w2", "in.0")
A, B, C = (numbers(2, 9, 24, seed=seed) for seed in range(3))


def silu(x):
    return x / (1 + np.exp(-x))


def run(sources, expected, found, behind, their_behind, producers):
    """What both runs hold: the projections, the activation of what it was given, and what the last one is given."""
    reference = {**sources, ACT: expected, ACTIVATED: silu(expected), DOWN: behind}
    candidate = {**sources, ACT: found, ACTIVATED: silu(found), DOWN: their_behind}
    blurs = {site: blurred(value, FLOAT32, seed) for seed, (site, value) in enumerate(candidate.items())}
    return Run(reference, blurs, producers={ACT: producers})


def named(around, replayed=False):
    return cause(around.reference(ACT), around.candidate(ACT), FLOAT32, ACT, around=around, replayed=replayed)


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("order", [(GATE, UP), (UP, GATE)])
@pytest.mark.parametrize("join", [np.multiply, np.add])
def test_an_activation_that_is_given_the_other_factor_is_named_whichever_is_made_first(join, order, replayed):
    values = {GATE: A, UP: B}
    sources = {site: values[site] for site in order}
    around = run(sources, A, B, join(silu(A), B), join(silu(B), A), (GATE,))
    given = named(around, replayed)
    assert given.label == "swapped-operands", given
    assert given.parameters == {"taken": UP.name, "reference": GATE.name}


@pytest.mark.parametrize("fused", [np.concatenate([A, B], -1), np.stack([A, B], -1).reshape(2, 9, -1)])
def test_halves_of_one_projection_that_are_exchanged_are_named(fused):
    around = run({FUSED: fused}, A, B, silu(A) * B, silu(B) * A, (FUSED,))
    assert named(around).label == "swapped-halves"


@pytest.mark.parametrize(
    "their_behind", [silu(B) * B, silu(B), silu(B) * C], ids=["the same twice", "no product", "another factor"]
)
def test_factors_are_not_exchanged_where_the_gate_does_not_take_the_other_place(their_behind):
    around = run({GATE: A, UP: B}, A, B, silu(A) * B, their_behind, (GATE,))
    assert named(around).label != "swapped-operands"


def test_a_tensor_of_another_block_is_no_exchanged_factor():
    other = UP._replace(name="layers.0.attn.v")
    around = run({other: B, GATE: A}, A, B, silu(A) * B, silu(B) * A, (GATE,))
    assert named(around).label != "swapped-operands"
