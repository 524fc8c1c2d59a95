"""rotary-embedding-torch: rotary positions, xpos, frequencies of pixels."""

import torch

from ..case import Calls, Case, Truth, Where, at, normal

PATH = "rotary_embedding_torch.rotary_embedding_torch"
QUERIES = normal(2, 3, 10, 16, seed=1)
KEYS = normal(2, 3, 10, 16, seed=2)


def rotary(name, buggy, fixed, function, truth=None, source="", inputs=lambda: (QUERIES, KEYS), own=(), **settings):
    def make(release):
        return Calls(function, rotary=release.find(f"{PATH}:RotaryEmbedding")(**settings))

    return Case(name, "rotary-embedding-torch", buggy, fixed, make, inputs, truth, source, own=own)


def rotated_by_hand(name, buggy, fixed, truth=None, source=""):
    def make(release):
        apply = release.find(f"{PATH}:apply_rotary_emb")
        embedding = release.find(f"{PATH}:RotaryEmbedding")(dim=16)
        return Calls(lambda rotary, t: apply(rotary(torch.arange(t.shape[-2])), t), rotary=embedding)

    return Case(name, "rotary-embedding-torch", buggy, fixed, make, lambda: (QUERIES,), truth, source)


def both(rotary, q, k):
    return rotary.rotate_queries_and_keys(q, k)


def cached_keys(rotary, q, k):
    return rotary.rotate_queries_with_cached_keys(q[..., -4:, :], k, offset=3)


def again_further_on(rotary, q, k):
    return rotary.rotate_queries_or_keys(q), rotary.rotate_queries_or_keys(k, offset=4)


def first_further_on(rotary, q, k):
    return rotary.rotate_queries_or_keys(q, offset=4), rotary.rotate_queries_or_keys(k)


def one(rotary, q, k):
    return rotary.rotate_queries_or_keys(q), rotary.rotate_queries_or_keys(k)


CASES = [
    rotated_by_hand(
        "rotary-half-concatenated",
        "0.0.11",
        "0.0.12",
        Truth(
            (at("", "out*"),),
            ("rope-interleave", "interleave", "axis-order"),
            "the rotated halves are concatenated, where the pairs are neighbours: cat instead of stack and fold",
            (r"\bcat\b.*stack", "neighbour"),
        ),
        "0.0.12 stacks -x2 and x1 and folds the pair into the features",
    ),
    rotary(
        "rotary-pixel-frequencies",
        "0.1.0",
        "0.1.1",
        lambda rotary, t: rotary(t[0, 0, :, 0]),
        Truth(
            (Where("weight", "rotary", "freqs"),),
            ("frequency-table",),
            "frequencies are spaced by their logarithms instead of evenly",
            ("logspace|linspace",),
        ),
        "0.1.1: linspace in place of logspace",
        lambda: (QUERIES,),
        own=("rotary.freqs",),
        dim=16,
        freqs_for="pixel",
    ),
    rotary(
        "xpos-scale-from-cache",
        "0.2.1",
        "0.2.2",
        both,
        Truth(
            (at("", "out*"),),
            ("stale-buffer",),
            "frequencies and scales share one cache and one key: the scale read from it is the frequencies",
            ("freqs|frequenc", r"reads the result of reshape of line \d+ instead of the result of cat"),
        ),
        "0.2.2 gives the keys of the cache a prefix, and stores the scale",
        dim=16,
        use_xpos=True,
    ),
    rotary(
        "xpos-power",
        "0.2.2",
        "0.2.3",
        both,
        Truth(
            (at("", "out*"),),
            ("op-order",),
            "only the middle position is divided by the scale base (512), not the distance from it",
            (r"\b512\b", r"\bdiv|\bsub\b"),
        ),
        "0.2.3: (t - len(t) // 2) / scale_base",
        dim=16,
        use_xpos=True,
    ),
    rotary(
        "xpos-scale-in-halves",
        "0.7.0",
        "0.8.0",
        both,
        Truth(
            (at("", "out*"),),
            ("interleave", "rope-interleave"),
            "the scales of the pairs stand in two halves, where the pairs are neighbours: cat instead of repeat",
            (r"\bcat\b", "repeat", "merged in the order"),
        ),
        "0.8.0 repeats each scale twice in place",
        dim=16,
        use_xpos=True,
    ),
    rotary(
        "rotary-offset-ignored",
        "0.6.0",
        "0.6.1",
        cached_keys,
        Truth(
            (at("", "out*"),),
            ("position-shift",),
            "the offset (3) is not added to the positions of queries and keys",
            (r"\b3\b", "offset", "6, 7, 8, 9"),
        ),
        "0.6.1 adds offset for both",
        dim=16,
    ),
    rotary(
        "rotary-cache-key-without-offset",
        "0.2.6",
        "0.2.7",
        again_further_on,
        Truth(
            (at("", "out*1"),),
            ("stale-buffer", "position-shift"),
            "the second call, with offset 4, is answered from the cache of the first, without",
            (r"\boffset\b", "cache"),
        ),
        "0.2.7 adds the offset to the key",
        dim=16,
    ),
    rotary(
        "rotary-cache-with-offset",
        "0.8.2",
        "0.8.3",
        first_further_on,
        Truth(
            (at("", "out*1"),),
            ("stale-buffer", "position-shift"),
            "the frequencies of the first call, with offset 4, are cached as those of position 0 on",
            (r"\boffset\b", "cache"),
        ),
        "0.8.3 caches only without an offset",
        dim=16,
    ),
    rotary("rotary-lazy-positions", "0.1.4", "0.1.5", one, dim=16),
    rotary("rotary-cast-afterwards", "0.6.1", "0.6.2", one, dim=16),
    rotary("rotary-not-in-place", "0.6.4", "0.6.5", one, dim=16),
    rotary("rotary-buffer-for-cache", "0.8.0", "0.8.1", one, dim=16),
]
