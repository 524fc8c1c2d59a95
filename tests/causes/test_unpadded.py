"""Padding that one side adds before a module and the other inside it: told by the numbers, whatever was handed over."""

from __future__ import annotations

import pytest
import torch
from blame import Run
from drifts import array, drift, random, settled
from torch import nn
from torch.nn.functional import avg_pool2d, conv1d, conv2d, max_pool2d, pad

from firstdrift.capture.torch.names import attrs_of
from firstdrift.causes.hypotheses import explain
from firstdrift.causes.table import TABLE
from firstdrift.sites import Site

X, SIGNAL = random(0, 2, 8, 10, 12), random(1, 3, 4, 20)
BARE = settled(nn.Conv2d(8, 6, 3, stride=2))
INSIDE = settled(nn.Conv2d(8, 6, 3, stride=2, padding=1))
CAUSAL = settled(nn.Conv1d(4, 6, 5))
LARGEST, MEAN = nn.MaxPool2d(3, 2), nn.AvgPool2d(3, 2)
AFTER, BEFORE, AROUND = (0, 1, 0, 1), (1, 0, 1, 0), (1, 1, 1, 1)


def handed(module, ours, theirs, found, noise=1e-7):
    """What all hypotheses say of a module that was handed one tensor by the reference and another by the candidate."""
    site = Site(0, "fwd", "module", "in.0")
    around = Run({site: array(ours)}, {site: array(theirs)})
    parameters = dict(module.named_parameters())
    known = {"op": type(module).__name__, "attrs": attrs_of(module), "around": around}
    return explain(drift(module(ours), found, {}, parameters, noise, **known), TABLE)


def conv(x, weight=BARE.weight, stride=2, **more):
    return conv2d(x, weight, BARE.bias, stride=stride, **more)


CASES = {
    "after, then around": (BARE, pad(X, AFTER), X, conv(X, padding=1)[..., :5, :6]),
    "around, then after": (BARE, pad(X, AROUND), X, conv(pad(X, AFTER))),
    "inside, then before it is handed on": (
        INSIDE, X, pad(X, AFTER), conv2d(pad(X, AFTER), INSIDE.weight, INSIDE.bias, stride=2),
    ),
    "along one axis": (BARE, pad(X, AFTER), X, conv(pad(X, (1, 0, 0, 1)))),
    "reflected, then zeros": (BARE, pad(X, AROUND, mode="reflect"), X, conv(pad(X, AROUND))),
    "zeros, then replicated": (BARE, pad(X, BEFORE), X, conv(pad(X, BEFORE, mode="replicate"))),
    "causal, then around": (
        CAUSAL, pad(SIGNAL, (4, 0)), SIGNAL, conv1d(SIGNAL, CAUSAL.weight, CAUSAL.bias, padding=2),
    ),
    "maximum": (LARGEST, pad(X.abs(), AFTER), X.abs(), max_pool2d(pad(X.abs(), BEFORE), 3, 2)),
    "mean": (MEAN, pad(X, AFTER), X, avg_pool2d(pad(X, BEFORE), 3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("noise", [1e-9, 1e-7, 1e-5])
@pytest.mark.parametrize("name", CASES)
def test_other_padding_is_named_wherever_it_is_added(name, noise):
    said = handed(*CASES[name], noise)
    assert said.label == "padding", said


OTHERS = {
    "flipped": (conv(pad(X, AFTER), BARE.weight.flip(2, 3)), "conv-flip"),
    "as OHWI": (conv(pad(X, AFTER), BARE.weight.permute(0, 2, 3, 1).reshape(BARE.weight.shape)), "conv-layout"),
    "no bias": (conv2d(pad(X, AFTER), BARE.weight, stride=2), "missing-bias"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_wrong_beside_the_same_padding_is_not_called_padding(name):
    found, label = OTHERS[name]
    said = handed(BARE, pad(X, AFTER), X, found)
    assert said.label in (label, "unknown"), said


def test_what_is_not_the_same_within_a_border_says_nothing_of_padding():
    other = random(5, *X.shape)
    assert handed(BARE, pad(X, AFTER), other, conv(pad(other, BEFORE))).label != "padding"


def test_unrelated_numbers_are_no_other_padding():
    expected = BARE(pad(X, AFTER))
    assert handed(BARE, pad(X, AFTER), X, random(6, *expected.shape)).label == "unknown"


@pytest.mark.parametrize("port", ["in.0", "in.1"])
def test_a_tensor_between_modules_is_left_as_it_is(port):
    site = Site(0, "fwd", "module", "in.0")
    around = Run({site: array(pad(X, AFTER))}, {site: array(X)})
    evidence = drift(X, torch.roll(X, 1, 1), {}, port=port, around=around)
    assert explain(evidence, TABLE).label != "padding"
