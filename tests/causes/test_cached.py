"""Attention that sees keys and values of earlier calls: understood with its past, which may be another sample's."""

import numpy as np
import pytest
from blame import FLOAT32, Run, cause, numbers

from firstdrift.sites import Site

BATCH, HEADS, CHANNELS = 3, 4, 6
CALLS = (5, 1, 3)  # tokens of each call
SITE = Site(0, "fwd", "layers.0.attn.o_proj", "in.0")
NAMES = {role: f"layers.0.attn.{role}_proj" for role in "qkv"}
MASK = np.arange(12) < np.array([12, 7, 9])[:, None]


def projected(role, seed):
    return [numbers(BATCH, n, HEADS * CHANNELS, seed=seed + 7 * call) for call, n in enumerate(CALLS)]


PARTS = {role: projected(role, seed) for seed, role in enumerate("qkv")}


def attended(call, k, v, mask=None, scale=CHANNELS**-0.5, diagonal=0):
    q = PARTS["q"][call].reshape(BATCH, -1, HEADS, CHANNELS)
    k, v = (x.reshape(BATCH, -1, HEADS, CHANNELS) for x in (k, v))
    ahead = np.arange(k.shape[1]) - np.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])
    shown = (ahead <= diagonal) & (True if mask is None else mask[:, None, None, : k.shape[1]])
    raw = np.where(shown, scale * np.einsum("bqhd,bkhd->bhqk", q, k), -np.inf)
    weights = np.exp(raw - raw.max(-1, keepdims=True))
    out = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)
    return out.reshape(BATCH, q.shape[1], -1)


def kept(call, moved=lambda x: x):
    """Keys and values of all calls up to one; those of earlier calls as they are read."""
    return [np.concatenate([moved(np.concatenate(x[:call], 1)), x[call]], 1) for x in (PARTS["k"], PARTS["v"])]


def named(call, expected, found, mask=None, replayed=False):
    sites = {Site(0, "fwd", NAMES[role], "out", one): PARTS[role][one] for one in range(len(CALLS)) for role in NAMES}
    here = SITE._replace(call=call)
    before = [Site(0, "fwd", name, "out", call) for name in NAMES.values()]
    inputs = {site.name: sites[site] for site in before} | ({} if mask is None else {"input mask": mask * 1})
    around = Run(sites, producers={here: before})
    return cause(expected, found, FLOAT32, here, inputs=inputs, around=around, replayed=replayed)


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "padded"])
@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize(("call", "step"), [(1, 1), (2, 1), (2, 2)])
def test_a_past_that_is_another_samples_is_named(call, step, replayed, mask):
    expected = attended(call, *kept(call), mask)
    found = attended(call, *kept(call, lambda x: np.roll(x, step, axis=0)), mask)
    given = named(call, expected, found, mask, replayed)
    assert given.label == "permutation", given
    assert given.parameters["shift"] == step


@pytest.mark.parametrize(
    ("label", "change"), [("attention-scale", {"scale": 1.0}), ("mask-off-by-one", {"diagonal": -1})]
)
def test_other_changes_of_an_attention_with_a_past_are_named_as_without(label, change):
    found = attended(2, *kept(2), **change)
    assert named(2, attended(2, *kept(2)), found).label == label


def test_a_past_that_is_none_of_the_batch_is_not_named():
    found = attended(2, *kept(2, lambda x: x[:, ::-1] + 0.5 * numbers(*x.shape, seed=40)))
    assert named(2, attended(2, *kept(2)), found).label == "unknown"
