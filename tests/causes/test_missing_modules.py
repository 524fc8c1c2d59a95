"""Modules that only the reference runs: the candidate's tensor goes around them, in whatever layout it is read."""

from itertools import pairwise

import numpy as np
import pytest
from blame import BF16, FLOAT32, Run, cause, numbers

from firstdrift.sites import Site

B, T, H, D = 2, 9, 4, 8
X = numbers(B, T, H * D)
Y = X / np.sqrt((X**2).mean(-1, keepdims=True)) * (1 + 0.3 * numbers(H * D, seed=3))
HERE = Site(0, "fwd", "layers.0.attn.rope", "in.0")
MADE = Site(0, "fwd", "layers.0.attn.q", "out")


def heads_first(x):
    return x.reshape(B, T, H, D).swapaxes(1, 2)


LAYOUTS = {
    "as it is": lambda x: x,
    "heads first": heads_first,
    "tokens first": lambda x: x.reshape(B, T, H, D),
    "merged": lambda x: x.reshape(B * T, H * D),
    "channels first": lambda x: x.swapaxes(1, 2),
}


def around(fed, made, name="layers.0.attn.q_norm", op="RMSNorm", **more):
    """A run of which only the reference has a module."""
    sites = {Site(0, "fwd", name, "in.0"): fed, Site(0, "fwd", name, "out"): made}
    return Run(
        {MADE: fed, **sites}, ops={name: op}, facts={"reference_only": tuple(sites)},
        producers={Site(0, "fwd", name, "in.0"): [MADE]}, **more,
    )  # fmt: skip


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("label", "name", "op"),
    [
        ("norm-missing", "layers.0.attn.q_norm", "RMSNorm"),
        ("norm-missing", "layers.0.attn.q_norm", ""),
        ("skipped-op", "layers.0.attn.gain", "Gain"),
    ],
)
def test_a_module_that_is_not_run_is_named_by_what_it_does(label, name, op, layout, noise):
    read = LAYOUTS[layout]
    said = cause(read(Y), read(X), noise, HERE, inputs={}, around=around(X, Y, name, op))
    assert said.label == label, said
    assert said.parameters["module"] == name


def test_what_the_candidate_has_of_the_modules_input_counts_where_the_sides_part_by_noise():
    own = X * (1 + 1e-3)
    run = around(X, Y)
    run._candidate[MADE] = own
    said = cause(heads_first(Y), heads_first(own), FLOAT32, HERE, inputs={}, around=run)
    assert said.label == "norm-missing"


def test_a_missing_module_that_made_something_else_is_not_blamed():
    said = cause(heads_first(numbers(B, T, H * D, seed=8)), heads_first(X), site=HERE, inputs={}, around=around(X, Y))
    assert said.label not in ("norm-missing", "skipped-op")


def test_a_module_that_is_missing_where_another_one_is_wrong_is_not_blamed():
    said = cause(heads_first(Y), heads_first(X + 0.1 * Y), site=HERE, inputs={}, around=around(X, Y))
    assert said.label not in ("norm-missing", "skipped-op")


def test_two_modules_in_a_row_are_missed_together():
    z = np.tanh(Y)
    first, second = "layers.0.q_norm", "layers.0.q_act"
    sites = {
        Site(0, "fwd", first, "in.0"): X, Site(0, "fwd", first, "out"): Y,
        Site(0, "fwd", second, "in.0"): Y, Site(0, "fwd", second, "out"): z,
    }  # fmt: skip
    order = list(sites)
    run = Run(
        {MADE: X, **sites}, ops={first: "RMSNorm", second: "Tanh"}, facts={"reference_only": tuple(sites)},
        producers={after: [before] for before, after in pairwise(order)},
    )  # fmt: skip
    said = cause(heads_first(z), heads_first(X), site=HERE, inputs={}, around=run)
    assert said.label == "skipped-op"
    assert f"{first} to {second}" in said.sentence
