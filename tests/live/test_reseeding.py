"""A drift that moves with the seed is chance, and is said to be; one that does not is what it is."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import firstdrift as fd
from firstdrift.live import reseeding

WIDTH, HEADS = 24, 4


class Attention(nn.Module):
    def __init__(self, rate=0.0, scale=None, jitter=0.0):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.rate, self.scale, self.jitter = rate, scale, jitter

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) * (self.scale or (WIDTH // HEADS) ** -0.5)).softmax(-1)
        weights = F.dropout(weights, self.rate, training=True)
        made = (weights @ v).transpose(1, 2).flatten(2)
        return self.o(made + self.jitter * torch.randn(made.shape, dtype=made.dtype))


class Net(nn.Module):
    def __init__(self, hidden=0.0, **options):
        super().__init__()
        self.into, self.attn = nn.Linear(10, WIDTH), Attention(**options)
        self.out, self.hidden = nn.Linear(WIDTH, 5), hidden

    def forward(self, x):
        x = self.into(x)
        return self.out(F.dropout(x + self.attn(x), self.hidden, training=True))


def checked(reference, candidate, **more):
    torch.manual_seed(0)
    ours, theirs = Net(**reference), Net(**candidate)
    theirs.load_state_dict(ours.state_dict())
    return fd.check(reference=ours, candidate=theirs, inputs=(torch.randn(3, 14, 10),), **more)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_inside_an_attention_that_stays_active_is_named(rate):
    result = checked({}, {"rate": rate})
    drift = result.first_drift
    assert (drift.name, drift.port) == ("attn.o", "in.0")
    assert drift.cause.label in ("nondeterministic", "dropout-active"), drift.cause
    assert drift.cause.label == "dropout-active" or "random seed" in drift.cause.sentence


def test_dropout_whose_zeros_are_seen_is_called_dropout():
    result = checked({}, {"hidden": 0.3})
    assert (result.first_drift.name, result.first_drift.cause.label) == ("out", "dropout-active")


def test_other_chance_is_not_called_dropout():
    assert checked({}, {"jitter": 0.05}).first_drift.cause.label == "nondeterministic"


def test_a_bug_that_no_seed_moves_keeps_its_own_name():
    assert checked({}, {"scale": 1.0}).first_drift.cause.label == "attention-scale"


def test_what_is_random_on_both_sides_is_not_blamed_on_chance():
    drift = checked({"hidden": 0.3}, {"hidden": 0.3, "scale": 1.0}).first_drift
    assert (drift.name, drift.cause.label) == ("attn.o", "attention-scale")
    drift = checked({"rate": 0.1}, {"rate": 0.1, "scale": 3.0}).first_drift
    assert drift is None or drift.cause.label != "nondeterministic"


def test_clean_runs_and_training_are_not_run_with_another_seed(monkeypatch):
    monkeypatch.setattr(reseeding.Reseeding, "again", property(lambda self: pytest.fail("run again")))
    assert checked({}, {}).verdict.value in ("same", "noise")
    target = torch.zeros(3, 14, 5)
    wrong = checked({}, {"scale": 1.0}, loss_fn=F.mse_loss, target=target, train=True)
    assert wrong.first_drift.cause.label == "attention-scale"


def test_random_numbers_go_on_as_if_nothing_had_run():
    def drawn():
        return torch.rand(2).tolist(), np.random.rand(), random.random()  # noqa: NPY002

    def seeded():
        torch.manual_seed(3)
        np.random.seed(3)  # noqa: NPY002
        random.seed(3)

    ours, theirs, x = Net(), Net(rate=0.2), torch.randn(3, 14, 10)
    theirs.load_state_dict(ours.state_dict())
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    seeded()
    first = drawn()
    seeded()
    assert fd.check(reference=ours, candidate=theirs, inputs=(x,)).first_drift.cause.label == "nondeterministic"
    assert drawn() == first
    assert all(torch.equal(value, before[name]) for name, value in theirs.state_dict().items())
