"""Causes that act on some heads, samples or tokens alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from attention_models import Config, rope
from blame import BF16, FLOAT32, Run, blurred, cause, numbers

from firstdrift.causes.layout.some_slices import HYPOTHESES
from firstdrift.sites import Site

LLAMA = Config(theta=1e4)
SITE = Site(0, "fwd", "layers.1.rope", "out")
CHANGES = [
    ("rope-interleave", {"pairing": "interleaved"}),
    ("rope-theta", {"theta": 5e5}),
    ("position-shift", {"shift": 2}),
    ("skipped-op", {"theta": None}),
]


def turned(x, config):
    return x if config.theta is None else rope(torch.from_numpy(x), config, config.shift).numpy()


def mixed(x, changes, axis, slices):
    """What a rotation gives, and what it gives where some slices are turned otherwise."""
    expected = turned(x, LLAMA)
    found = expected.copy()
    where = (slice(None),) * axis + (slices,)
    found[where] = turned(x, replace(LLAMA, **changes))[where]
    return expected, found


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(("axis", "slices"), [(1, [0]), (1, [1, 3]), (0, [2])])
@pytest.mark.parametrize(("label", "changes"), CHANGES)
def test_heads_and_samples_that_are_turned_otherwise_are_named(label, changes, axis, slices, noise):
    x = numbers(3, 4, 24, 32)
    said = cause(*mixed(x, changes, axis, slices), noise, SITE, inputs={"in.0": x}, op="Rotary")
    assert said.label == label, said
    if "shifts" not in said.parameters:  # positions are read off sample by sample
        assert (said.parameters["axis"], said.parameters["slices"]) == (axis, slices)


@pytest.mark.parametrize(("label", "changes"), CHANGES)
def test_what_explains_the_whole_tensor_is_not_said_of_some_slices(label, changes):
    x = numbers(3, 4, 24, 32)
    said = cause(turned(x, LLAMA), turned(x, replace(LLAMA, **changes)), site=SITE, inputs={"in.0": x})
    assert said.label == label
    assert "alone" not in said.sentence


def test_slices_with_another_cause_are_not_explained():
    x = numbers(3, 4, 24, 32)
    expected = turned(x, LLAMA)
    found = expected.copy()
    found[:, 1] = numbers(3, 24, 32, seed=5)
    assert cause(expected, found, site=SITE, inputs={"in.0": x}, around=Run({}), table=HYPOTHESES).label == "unknown"


def test_slices_of_zeros_do_not_count_as_ones_that_agree():
    x = numbers(3, 4, 24, 32)
    x[1] = 0.0
    found = blurred(turned(x, replace(LLAMA, pairing="interleaved")), 1e-8)
    said = cause(turned(x, LLAMA), found, site=SITE, inputs={"in.0": x}, table=HYPOTHESES)
    assert "along axis 0" not in said.sentence


def test_a_few_numbers_that_differ_say_nothing():
    x = numbers(8, 3, 4)
    expected, found = np.tanh(x), np.tanh(x)
    found[2] = x[2]
    assert cause(expected, found, site=SITE, inputs={"in.0": x}, table=HYPOTHESES).label == "unknown"
