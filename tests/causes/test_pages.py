"""Pages of keys and values: those that are read in place of others, or behind the end, are named."""

import numpy as np
import pytest
from blame import FLOAT32, cause, numbers

from firstdrift.sites import Site

BATCH, TOKENS, HEADS, KV, CHANNELS, SLOTS, PAGES = 2, 9, 4, 2, 6, 4, 5
SITE = Site(0, "fwd", "layers.0.attn.o_proj", "in.0")
Q, K, V = (numbers(BATCH, TOKENS, n * CHANNELS, seed=seed) for seed, n in enumerate((HEADS, KV, KV)))
POOL_K, POOL_V = (numbers(PAGES, SLOTS, KV, CHANNELS, seed=seed) for seed in (5, 6))
ZERO = np.zeros((1, SLOTS, KV, CHANNELS))


def rotated(x, first):
    angles = (np.arange(TOKENS) + first)[:, None] * 1e4 ** (-np.arange(0, CHANNELS, 2) / CHANNELS)
    cos, sin = (np.tile(f(angles), 2)[:, None] for f in (np.cos, np.sin))
    a, b = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([-b, a], -1) * sin


def attended(pages, rope=False, causal=True, scale=CHANNELS**-0.5, stale=None):
    q, k, v = (x.reshape(BATCH, TOKENS, -1, CHANNELS) for x in (Q, K, V))
    if rope:
        q, k = (rotated(x, rope * SLOTS) for x in (q, k))
    pool = [np.concatenate([x, ZERO if stale is None else stale]) for x in (POOL_K, POOL_V)]
    before = [
        np.broadcast_to(x[pages].reshape(-1, KV, CHANNELS), (BATCH, len(pages) * SLOTS, KV, CHANNELS)) for x in pool
    ]
    k, v = (np.repeat(np.concatenate([a, b], 1), HEADS // KV, 2) for a, b in zip(before, (k, v), strict=True))
    raw = scale * np.einsum("bqhd,bkhd->bhqk", q, k)
    ahead = np.arange(k.shape[1]) - len(pages) * SLOTS - np.arange(TOKENS)[:, None]
    raw = np.where(ahead <= 0, raw, -np.inf) if causal else raw
    weights = np.exp(raw - raw.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v).reshape(BATCH, TOKENS, -1)


def named(expected, found, noise=FLOAT32, heads_first=False):
    inputs = {f"layers.0.attn.{role}_proj": x for role, x in zip("qkv", (Q, K, V), strict=True)}
    pool = [x.transpose(0, 2, 1, 3) if heads_first else x for x in (POOL_K, POOL_V)]
    kept = {"k_cache": pool[0], "v_cache": pool[1], "table": np.array([3, 1, 0, 2, 4])}
    return cause(expected, found, noise, SITE, inputs=inputs, parameters=kept)


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rope", [0, 2])
@pytest.mark.parametrize("pages", [[0, 1], [4, 2], [1, 1]])
def test_pages_that_are_read_in_place_of_others_are_named(pages, rope, causal, heads_first):
    said = named(attended([3, 1], rope, causal), attended(pages, rope, causal), heads_first=heads_first)
    assert said.label == "permutation", said
    assert (said.parameters["pages"], said.parameters["reference_pages"]) == (sorted(pages), [1, 3])


@pytest.mark.parametrize("rope", [0, 2])
@pytest.mark.parametrize("pages", [[3, 1, 0], [3, 1, 1], [3, 1, 2, 4], [3, 1, PAGES]])
def test_pages_behind_the_end_that_are_seen_are_a_mask_that_is_missing(pages, rope):
    said = named(attended([3, 1], rope), attended(pages, rope))
    assert said.label == "mask-missing", said
    assert said.parameters["pages"] == sorted(pages)


@pytest.mark.parametrize("pages", [[3], [], [1]])
def test_fewer_pages_are_neither_permuted_nor_surplus(pages):
    assert named(attended([3, 1]), attended(pages)).label not in ("permutation", "mask-missing")


@pytest.mark.parametrize(
    ("label", "change"), [("attention-scale", {"scale": 1.0}), ("mask-missing", {"causal": False})]
)
@pytest.mark.parametrize("rope", [0, 2])
def test_other_changes_of_an_attention_with_pages_are_named_as_without(label, change, rope):
    said = named(attended([3, 1], rope), attended([3, 1], rope, **change))
    assert (said.label, "pages" in said.parameters) == (label, False)


@pytest.mark.parametrize("noise", [FLOAT32, 3e-3])
def test_a_page_of_other_numbers_is_none_of_these(noise):
    found = attended([3, PAGES], stale=numbers(1, SLOTS, KV, CHANNELS, seed=40))
    assert named(attended([3, 1]), found, noise).label == "unknown"
