"""Scores before a softmax that are a tensor of their own: what changed in them is named as it is of an output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from blame import FLOAT32, Run, blurred, cause, numbers

from firstdrift.causes.attention.observing import observed_scores
from firstdrift.causes.evidence import Evidence
from firstdrift.sites import Site

BATCH, HEADS, TOKENS, CHANNELS = 3, 6, 12, 5
SITE = Site(0, "fwd", "layers.0.mixer.normalise", "in.0")
OUT = SITE._replace(port="out")
FAR = np.arange(TOKENS) - np.arange(TOKENS)[:, None]  # how far a key comes after a query
Q = numbers(BATCH, TOKENS, HEADS, CHANNELS)
CAUSAL, EVERYTHING = FAR <= 0, FAR < TOKENS
FILLS = (-np.inf, -1e9)


def keys(kv_heads: int) -> np.ndarray:
    return numbers(BATCH, TOKENS, kv_heads, CHANNELS, seed=1)


def scores(k: np.ndarray, q: np.ndarray = Q, tiled: bool = False, scale: float = CHANNELS**-0.5) -> np.ndarray:
    times = HEADS // k.shape[2]
    written = np.tile(k, (1, 1, times, 1)) if tiled else np.repeat(k, times, axis=2)
    return np.asarray(scale * np.einsum("bqhd,bkhd->bhqk", q, written))


def hidden(x: np.ndarray, shown: np.ndarray, fill: float = -np.inf) -> np.ndarray:
    return np.where(shown, x, fill)


def said(expected: np.ndarray, found: np.ndarray, noise: float = FLOAT32, **known: Any) -> Any:
    known.setdefault("around", Run({OUT: expected}, ops={SITE.name: "Softmax"}))
    return cause(expected, found, noise, SITE, **known)


def projections(q: np.ndarray, k: np.ndarray) -> dict[str, np.ndarray]:
    names = ("layers.0.mixer.q_proj", "layers.0.mixer.k_proj")
    return {name: x.reshape(*x.shape[:2], -1) for name, x in zip(names, (q, k), strict=True)}


def slopes(heads: int = HEADS) -> np.ndarray:
    power = 2 ** int(np.log2(heads))
    more = [2.0 ** (-4 * (2 * one + 1) / power) for one in range(heads - power)]
    return np.array([2.0 ** (-8 * (one + 1) / power) for one in range(power)] + more)


def even(heads: int = HEADS) -> np.ndarray:
    return 2.0 ** (-8 * np.arange(1, heads + 1) / heads)


def falling(each: np.ndarray) -> np.ndarray:
    return -each[:, None, None] * np.abs(FAR)


@pytest.mark.parametrize("shown", [EVERYTHING, CAUSAL])
@pytest.mark.parametrize("kv_heads", [2, 3])
def test_key_heads_that_are_tiled_are_named_on_scores_of_which_only_queries_and_keys_are_known(kv_heads, shown):
    k = keys(kv_heads)
    expected, found = (hidden(scores(k, tiled=tiled), shown) for tiled in (False, True))
    assert said(expected, found, inputs=projections(Q, k)).label == "gqa-order"


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("layout", ["heads first", "tokens first"])
@pytest.mark.parametrize("by", ["calls", "ports"])
def test_queries_and_keys_without_a_name_are_told_by_the_order_in_which_one_module_gives_them(by, layout, replayed):
    q, k = Q, keys(2)
    turned = [x.transpose(0, 2, 1, 3) if layout == "heads first" else x for x in (q, k)]
    first = Site(0, "fwd", "layers.0.mixer.turn", "out" if by == "calls" else "out.0")
    second = first._replace(call=1) if by == "calls" else first._replace(port="out.1")
    around = Run({first: turned[0], second: turned[1]}, producers={SITE: (second, first)})
    expected, found = scores(k), scores(k, tiled=True)
    given = said(expected, found, inputs={first.name: turned[1]}, around=around, replayed=replayed)
    assert given.label == "gqa-order", given


@pytest.mark.parametrize(
    ("label", "factor"), [("attention-scale", CHANNELS**0.5), ("attention-scale", CHANNELS**-0.5), (None, 1.0)]
)
def test_another_scale_is_named_on_masked_scores_and_random_ones_are_not(label, factor):
    k = keys(6)
    found = factor * scores(k) if label else scores(keys(6)[::-1].copy(), Q[:, ::-1].copy())
    given = said(hidden(scores(k), CAUSAL), hidden(found, CAUSAL), inputs=projections(Q, k))
    assert given.label in ((label, "scale") if label else ("unknown",)), given


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize(("ours", "theirs"), [(slopes, even), (even, slopes)])
def test_other_slopes_of_heads_that_are_no_power_of_two_are_named(ours, theirs, knows):
    k = keys(6)
    inputs = projections(Q, k) if knows else {}
    given = said(scores(k) + falling(ours()), scores(k) + falling(theirs()), inputs=inputs)
    assert given.label == "alibi-slope", given


@pytest.mark.parametrize("shown", [EVERYTHING, CAUSAL])
def test_slopes_of_any_kind_are_read_off_the_difference_alone(shown):
    base = scores(keys(6))
    theirs = np.array([0.5, 0.31, 0.2, 0.11, 0.05, 0.01])
    given = said(hidden(base + falling(slopes()), shown), hidden(base + falling(theirs), shown))
    assert given.label == "alibi-slope", given
    assert np.allclose(given.parameters["slopes_added"], theirs - slopes(), atol=1e-5)


@pytest.mark.parametrize("shown", [EVERYTHING, CAUSAL])
@pytest.mark.parametrize("is_missing", [True, False])
def test_linear_biases_that_one_side_has_not_are_a_missing_term(is_missing, shown):
    plain, biased = (hidden(scores(keys(6)) + bias, shown) for bias in (0.0, falling(slopes())))
    assert said(*((biased, plain) if is_missing else (plain, biased))).label == "missing-term"


TABLE = numbers(HEADS, 2 * TOKENS - 1, seed=5)
BY_DISTANCE = TABLE[:, FAR + TOKENS - 1]
FREE = numbers(HEADS, TOKENS, TOKENS, seed=6)


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("own", [BY_DISTANCE, FREE, 0 * FREE])
@pytest.mark.parametrize(
    "extra", [0.3 * np.sin(0.7 * (np.arange(HEADS)[:, None, None] + 1) * np.abs(FAR)), 0.2 * FREE[::-1]]
)
def test_a_bias_of_scores_that_only_the_candidate_has_is_a_missing_term(extra, own, knows):
    k = keys(6)
    given = said(scores(k) + own, scores(k) + own + extra, inputs=projections(Q, k) if knows else {})
    assert given.label == "missing-term", given


def test_a_bias_that_is_missing_and_one_that_is_scaled_are_told_apart_where_queries_and_keys_are_known():
    k = keys(6)
    known = {"inputs": projections(Q, k)}
    assert said(scores(k) + FREE, scores(k), **known).label == "missing-term"
    assert said(scores(k) + FREE, scores(k) + 2 * FREE, **known).label == "scale"


@pytest.mark.parametrize("knows", [True, False])
def test_a_bias_that_is_looked_up_at_other_places_is_no_missing_term(knows):
    """Its queries and keys exchanged, and one row too far in its table."""
    k = keys(6)
    weight = Site(0, "weight", "layers.0.mixer", "relative_bias")
    around = Run({OUT: scores(k), weight: TABLE}, ops={SITE.name: "Softmax"})
    inputs = projections(Q, k) if knows else {}
    for found in (BY_DISTANCE.swapaxes(1, 2), np.roll(TABLE, 1, axis=1)[:, FAR + TOKENS - 1]):
        given = said(scores(k) + BY_DISTANCE, scores(k) + found, inputs=inputs, around=around)
        assert given.label != "missing-term", given


def test_a_bias_whose_queries_and_keys_are_exchanged_is_no_missing_term_though_nothing_is_known_of_it():
    base = scores(keys(6))
    assert said(base + FREE, base + FREE.swapaxes(1, 2)).label != "missing-term"


def test_anything_is_a_bias_where_all_samples_are_the_same_so_none_is_named():
    one = np.repeat(scores(keys(6))[:1], 3, axis=0)
    other = np.repeat(scores(keys(6))[1:2], 3, axis=0)
    assert said(one, other).label == "unknown"


def test_a_bias_that_each_sample_has_its_own_of_is_not_named():
    base = scores(keys(6))
    assert said(base, base + numbers(*base.shape, seed=8)).label == "unknown"


def test_what_is_no_score_has_no_bias():
    around = Run({OUT: FREE}, ops={SITE.name: "Conv2d"})
    image = numbers(BATCH, HEADS, TOKENS, TOKENS)
    assert observed_scores(Evidence(SITE, image, image + FREE, FLOAT32, around=around)) is None


def reaching(before: int, after: int) -> np.ndarray:
    return np.asarray((before >= -FAR) & (after >= FAR))


OF_MASKS = {"window-off-by-one", "mask-off-by-one", "mask-missing"}
MASKS = [
    ("window-off-by-one", reaching(3, 3), reaching(3, 2)),
    ("window-off-by-one", reaching(3, 3), reaching(2, 3)),
    ("window-off-by-one", reaching(3, 3), reaching(4, 4)),
    ("window-off-by-one", reaching(3, 3), reaching(3, 4)),
    ("window-off-by-one", reaching(4, 0), reaching(5, 0)),
    ("window-off-by-one", reaching(4, 0), reaching(3, 0)),
    ("window-off-by-one", EVERYTHING, reaching(3, 3)),
    ("mask-off-by-one", CAUSAL, FAR <= 1),
    ("mask-off-by-one", CAUSAL, FAR <= -1),
    ("mask-off-by-one", reaching(4, 0), reaching(5, -1)),
    ("mask-missing", CAUSAL, EVERYTHING),
    ("mask-missing", EVERYTHING, CAUSAL),
    ("mask-missing", reaching(4, 0), CAUSAL),
    ("mask-missing", reaching(3, 3), EVERYTHING),
    ("mask-missing", reaching(4, 0), EVERYTHING),
]


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(("label", "ours", "theirs"), MASKS)
def test_two_masks_that_differ_by_a_diagonal_or_a_band_are_named(label, ours, theirs, fill, knows):
    k = keys(6)
    inputs = projections(Q, k) if knows else {}
    given = said(hidden(scores(k), ours, fill), hidden(scores(k), theirs, fill), inputs=inputs)
    assert given.label == label, given


PADDING = np.arange(TOKENS) < np.array([TOKENS, 8, 5])[:, None, None, None]


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(("label", "ours", "theirs"), MASKS[:4])
def test_windows_are_compared_beside_the_padding_that_both_sides_hide(label, ours, theirs, fill):
    base = scores(keys(6))
    assert said(hidden(base, ours & PADDING, fill), hidden(base, theirs & PADDING, fill)).label == label


@pytest.mark.parametrize("seen", [EVERYTHING, CAUSAL])
@pytest.mark.parametrize("fill", FILLS)
def test_padding_that_one_side_does_not_hide_is_a_missing_mask(fill, seen):
    base = scores(keys(6))
    padded, plain = hidden(base, seen & PADDING, fill), hidden(base, seen, fill)
    assert said(padded, plain).label == "mask-missing"
    assert said(plain, padded).label == "mask-missing"


def test_hidden_keys_whose_score_hides_nothing_are_a_missing_mask():
    base = scores(keys(6))
    given = said(hidden(base, CAUSAL), hidden(base, CAUSAL, 0.0))
    assert given.label == "mask-missing"
    assert given.parameters["hidden"] == 0.0


def test_masks_that_differ_without_a_pattern_are_not_named():
    base = scores(keys(6))
    at_random = numbers(TOKENS, TOKENS, seed=3) > 0
    for shown in (EVERYTHING, CAUSAL):
        for fill in FILLS:
            assert said(hidden(base, shown, fill), hidden(base, shown & at_random, fill)).label not in OF_MASKS


def test_another_mask_is_not_named_where_the_scores_that_both_show_differ_too():
    base = scores(keys(6))
    other = base + 0.1 * numbers(*base.shape, seed=8)
    for fill in FILLS:
        assert said(hidden(base, reaching(3, 3), fill), hidden(other, reaching(3, 2), fill)).label not in OF_MASKS


def test_scores_of_samples_and_heads_in_one_axis_are_read_where_the_number_of_heads_is_recorded():
    base = scores(keys(6))
    expected, found = (x.reshape(-1, TOKENS, TOKENS) for x in (base, base + falling(slopes())))
    assert said(expected, found, attrs={"num_heads": HEADS}).label == "missing-term"
    assert said(expected, found).label != "alibi-slope"


def attended(raw: np.ndarray, v: np.ndarray, sinks: np.ndarray) -> np.ndarray:
    """The softmax with one more score for each head, which no value belongs to."""
    extra = np.broadcast_to(sinks[:, None, None], (*raw.shape[:3], 1))
    weights = np.exp(np.concatenate([raw, extra], -1))
    shares = (weights / weights.sum(-1, keepdims=True))[..., :-1]
    return np.einsum("bhqk,bkhd->bqhd", shares, v).reshape(BATCH, TOKENS, -1)


@pytest.mark.parametrize(
    ("label", "change"),
    [
        ("window-off-by-one", {"shown": reaching(4, 0)}),
        ("window-off-by-one", {"shown": reaching(2, 0)}),
        ("mask-missing", {"shown": CAUSAL}),
        ("attention-scale", {"scale": 1.0}),
        ("missing-term", {"sinks": np.full(HEADS, -np.inf)}),
    ],
)
def test_an_attention_with_learned_sinks_is_understood_and_one_change_of_it_named(label, change):
    k, v = keys(6), numbers(BATCH, TOKENS, HEADS, CHANNELS, seed=2)
    usual: dict[str, Any] = {"shown": reaching(3, 0), "scale": CHANNELS**-0.5, "sinks": numbers(HEADS, seed=4)}

    def made(shown: np.ndarray, scale: float, sinks: np.ndarray) -> np.ndarray:
        return attended(hidden(scores(k, scale=scale), shown), v, sinks)

    inputs = {**projections(Q, k), "layers.0.mixer.v_proj": v.reshape(BATCH, TOKENS, -1)}
    site = Site(0, "fwd", "layers.0.mixer.o_proj", "in.0")
    given = cause(
        made(**usual), made(**{**usual, **change}), FLOAT32, site, inputs=inputs, parameters={"sinks": usual["sinks"]}
    )
    assert given.label == label, given


@pytest.mark.parametrize("theirs", [(3, 2), (2, 3), (3, 4), (4, 3)])
def test_a_window_that_is_off_by_one_to_one_side_is_named_on_what_attention_returns(theirs):
    k, v = keys(6), numbers(BATCH, TOKENS, HEADS, CHANNELS, seed=2)
    none = np.full(HEADS, -np.inf)
    expected, found = (attended(hidden(scores(k), reaching(*one)), v, none) for one in ((3, 3), theirs))
    inputs = {**projections(Q, k), "layers.0.mixer.v_proj": v.reshape(BATCH, TOKENS, -1)}
    given = cause(expected, found, FLOAT32, Site(0, "fwd", "layers.0.mixer.o_proj", "in.0"), inputs=inputs)
    assert given.label == "window-off-by-one", given
    assert given.parameters["side"] == ("before" if theirs[1] == 3 else "after")


def test_noise_alone_is_no_bias():
    base = scores(keys(6))
    assert said(base, blurred(base, 1e-4), 1e-6).label not in ("missing-term", "alibi-slope")


def lengths(*real: int) -> np.ndarray:
    """Which keys are real, of samples of so many tokens."""
    return (np.arange(TOKENS) < np.array(real)[:, None])[:, None, None]


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(("ours", "theirs"), [((9, 12, 6), (10, 12, 7)), ((9, 12, 6), (8, 11, 5))])
@pytest.mark.parametrize("flipped", [False, True])
def test_padding_that_ends_one_key_too_late_or_too_soon_is_off_by_one(
    fill: float, ours: tuple[int, ...], theirs: tuple[int, ...], flipped: bool
) -> None:
    base, step = scores(keys(6)), -1 if flipped else 1
    masks = [np.broadcast_to(lengths(*one)[..., ::step], base.shape) for one in (ours, theirs)]
    assert said(hidden(base, masks[0], fill), hidden(base, masks[1], fill)).label == "mask-off-by-one"


def test_padding_of_other_lengths_is_not_off_by_one() -> None:
    base = scores(keys(6))
    ours, theirs = (np.broadcast_to(lengths(*one), base.shape) for one in ((9, 12, 6), (11, 12, 5)))
    assert said(hidden(base, ours), hidden(base, theirs)).label not in OF_MASKS


def shares(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


DROP = Site(0, "fwd", "layers.0.mixer.drop", "in.0")
NEAR = np.abs(FAR) <= 3
SHARES = [
    ("window-off-by-one", NEAR, np.abs(FAR) <= 4),
    ("window-off-by-one", NEAR, NEAR & (FAR < 3)),
    ("mask-missing", NEAR, EVERYTHING),
    ("mask-off-by-one", CAUSAL, FAR <= 1),
    ("mask-missing", CAUSAL, EVERYTHING),
]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("fill", [-1e9, -1e30])
@pytest.mark.parametrize(("label", "ours", "theirs"), SHARES)
def test_what_shares_of_keys_hide_is_named_with_nothing_else_recorded(
    label: str, ours: np.ndarray, theirs: np.ndarray, fill: float, padded: bool
) -> None:
    base, real = scores(keys(6)), lengths(10, 12, 7) if padded else lengths(12, 12, 12)
    expected, found = (shares(hidden(base, shown & real, fill)) for shown in (ours, theirs))
    assert cause(expected, found, FLOAT32, DROP).label == label


def test_other_shares_of_the_keys_that_both_show_are_no_mask() -> None:
    base = scores(keys(6))
    expected, found = shares(hidden(base, NEAR, -1e9)), shares(hidden(1.3 * base, np.abs(FAR) <= 4, -1e9))
    assert cause(expected, found, FLOAT32, DROP).label not in OF_MASKS
