"""Blocks of keys and values that are read in another order, where masks and positions stay: the order is found."""

import numpy as np
import pytest
from blame import FLOAT32, cause, numbers

from firstdrift.causes.attention import HYPOTHESES
from firstdrift.sites import Site

BATCH, HEADS, KV, CHANNELS = 2, 4, 2, 8
SITE = Site(0, "fwd", "layers.0.attn.o_proj", "in.0")


def parts(tokens):
    return [numbers(BATCH, tokens, n * CHANNELS, seed=seed) for seed, n in enumerate((HEADS, KV, KV))]


def rotated(x, positions):
    angles = positions[:, None] * 1e4 ** (-np.arange(0, CHANNELS, 2) / CHANNELS)
    cos, sin = (np.tile(f(angles), 2)[:, None] for f in (np.cos, np.sin))
    a, b = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([-b, a], -1) * sin


def attended(tokens, slots=None, rope="", scale=CHANNELS**-0.5, values=None, noise=0.0):
    """Attention with other keys in the slots; `rope` says whether they are rotated by slot or by key."""
    q, k, v = (x.reshape(BATCH, tokens, -1, CHANNELS) for x in parts(tokens))
    slots, here = np.arange(tokens) if slots is None else slots, np.arange(tokens)
    k, v = k[:, slots], v[:, slots if values is None else values]
    if rope:
        q, k = rotated(q, here), rotated(k, here if rope == "slot" else slots)
    k, v = (np.repeat(x, HEADS // KV, 2) for x in (k + noise * numbers(*k.shape, seed=9), v))
    raw = np.where(here[None] <= here[:, None], scale * np.einsum("bqhd,bkhd->bhqk", q, k), -np.inf)
    weights = np.exp(raw - raw.max(-1, keepdims=True))
    out = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)
    return out.reshape(BATCH, tokens, -1)


def slots_of(order, size, tokens):
    moved = np.concatenate([np.arange(one * size, (one + 1) * size) for one in order])
    return np.concatenate([moved, np.arange(len(moved), tokens)])


def named(tokens, expected, found):
    inputs = {f"layers.0.attn.{role}_proj": x for role, x in zip("qkv", parts(tokens), strict=True)}
    return cause(expected, found, FLOAT32, SITE, HYPOTHESES, inputs=inputs)


@pytest.mark.parametrize("rope", ["", "slot", "key"])
@pytest.mark.parametrize(
    ("order", "size", "tokens"),
    [((1, 0), 8, 16), ((2, 0, 1), 4, 14), ((0, 3, 1, 2), 16, 64), ((4, 1, 0, 3, 2), 3, 15), ((0, 2, 1, 3), 4, 18)],
)
def test_the_order_of_blocks_is_found(order, size, tokens, rope):
    slots = slots_of(order, size, tokens)
    said = named(tokens, attended(tokens, rope=rope and "slot"), attended(tokens, slots, rope))
    assert said.label == "permutation", said
    found = slots_of(said.parameters["order"], said.parameters["block"], tokens)
    assert (found == slots).all()


@pytest.mark.parametrize("rope", ["", "slot"])
@pytest.mark.parametrize(
    "change",
    [
        {"values": slots_of((1, 0), 8, 16)},
        {"slots": slots_of((1, 0), 8, 16), "values": np.arange(16)},
        {"slots": slots_of((1, 0), 8, 16), "noise": 0.3},
        {"slots": np.roll(np.arange(16), 3)},
        {"slots": np.random.default_rng(0).permutation(16)},
        {"scale": 1.0},
        {"noise": 0.1},
    ],
)
def test_other_changes_are_not_called_an_order_of_blocks(change, rope):
    said = named(16, attended(16, rope=rope), attended(16, rope=rope, **change))
    assert said.label != "permutation", said
