"""Padding masks that an attention obeys though they were recorded elsewhere, and causal masks under position biases."""

import numpy as np
import pytest
import torch
from blame import FLOAT32, Run, blurred, numbers

from firstdrift.causes.attention import HYPOTHESES
from firstdrift.causes.evidence import Evidence
from firstdrift.causes.hypotheses import explain
from firstdrift.sites import Site

BATCH, QUERIES, KEYS, HEADS, WIDTH, PAD = 3, 7, 11, 2, 24, 5
SITE = Site(0, "fwd", "layers.2.cross.out_proj", "in.0")
LENGTHS = np.array([KEYS, 8, 6])
REAL = np.arange(KEYS) < LENGTHS[:, None]


def tokens(real=REAL):
    """Numbers of tokens, of which one is that of padding."""
    ids = np.random.default_rng(3).integers(PAD + 1, 90, real.shape)
    return np.where(real, ids, PAD)


# Where a mask is recorded, and how: by the module, by one around it, by the model, or not at all but for the tokens.
RECORDED = {
    "what the attention is given": {Site(0, "fwd", "layers.2.cross", "in.3"): REAL[:, None, None, :]},
    "hidden ones are true": {Site(0, "fwd", "layers.2", "in.2"): ~REAL},
    "an additive mask": {Site(0, "fwd", "", "in.1"): np.where(REAL, 0.0, -np.inf)[:, None, None, :]},
    "a mask of a model": {Site(0, "input", "input", "visible"): REAL},
    "token numbers": {Site(0, "input", "input", "source"): tokens()},
    "lengths": {Site(0, "input", "input", "source_lengths"): LENGTHS},
}
SHARED = {Site(0, "weight", "layers.2.cross", "hide"): ~REAL[2]}


def attended(q, k, v, seen=None, scale=1.0, bias=0.0):
    """Attention as torch computes it; what is seen is broadcast to (batch, heads, queries, keys)."""
    q, k, v = (torch.from_numpy(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in (q, k, v))
    scores = scale * (q @ k.transpose(2, 3)) / q.shape[-1] ** 0.5 + bias
    if seen is not None:
        scores = scores.masked_fill(~torch.as_tensor(seen), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2).numpy()


def projections(queries=QUERIES, keys=KEYS):
    return (
        numbers(BATCH, queries, WIDTH, seed=1),
        numbers(BATCH, keys, WIDTH, seed=2),
        numbers(BATCH, keys, WIDTH, seed=3),
    )


def said(parts, expected, found, around=None):
    """The cause of a drift between two attentions of the same projections."""
    inputs = {f"layers.2.cross.{name}_proj": value for name, value in zip("qkv", parts, strict=True)}
    given = Evidence(SITE, expected, blurred(found, FLOAT32), FLOAT32, inputs=inputs, candidate_inputs=inputs,
                     around=Run(around or {}))  # fmt: skip
    return explain(given, HYPOTHESES)


def over_keys(real):
    return real[:, None, None, :]


@pytest.mark.parametrize("recorded", RECORDED.values(), ids=RECORDED)
@pytest.mark.parametrize("queries", [QUERIES, KEYS])
def test_a_padding_mask_that_is_ignored_is_missing_wherever_it_was_recorded(recorded, queries):
    parts = projections(queries)
    cause = said(parts, attended(*parts, over_keys(REAL)), attended(*parts), recorded)
    assert (cause.label, cause.confidence) == ("mask-missing", 1.0)


@pytest.mark.parametrize("recorded", RECORDED.values(), ids=RECORDED)
def test_a_padding_mask_that_only_the_candidate_applies_is_told(recorded):
    parts = projections()
    cause = said(parts, attended(*parts), attended(*parts, over_keys(REAL)), recorded)
    assert cause.label == "mask-missing"
    assert "the reference ignores" in cause.sentence


def test_a_mask_that_is_shared_by_all_samples_is_missing_too():
    parts = projections()
    assert said(parts, attended(*parts, REAL[2]), attended(*parts), SHARED).label == "mask-missing"


def test_a_mask_read_the_wrong_way_round_is_told():
    real = np.arange(KEYS) < np.array([9, 8, 6])[:, None]
    parts = projections()
    around = {Site(0, "fwd", "layers.2", "in.2"): real}
    cause = said(parts, attended(*parts, over_keys(real)), attended(*parts, over_keys(~real)), around)
    assert cause.label == "mask-missing"
    assert "wrong way round" in cause.sentence


def test_without_a_mask_nothing_is_said_of_one():
    parts = projections()
    assert said(parts, attended(*parts, over_keys(REAL)), attended(*parts)).label == "unknown"


@pytest.mark.parametrize("recorded", RECORDED.values(), ids=RECORDED)
def test_another_cause_beside_a_mask_is_not_blamed_on_it(recorded):
    parts = projections()
    seen = over_keys(REAL)
    assert said(parts, attended(*parts, seen), attended(*parts, seen, scale=0.5), recorded).label == "attention-scale"
    assert said(parts, attended(*parts), attended(*parts, scale=0.5), recorded).label == "attention-scale"
    other = attended(*parts, over_keys(np.roll(REAL, 1, axis=0)))
    assert said(parts, attended(*parts), other, recorded).label == "unknown"


def causal(ahead=0):
    places = np.arange(KEYS)
    return places[None, :] <= places[:, None] + ahead


def biases(falling):
    """Linear biases by distance, which fall to one side or to both."""
    places = torch.arange(KEYS, dtype=torch.float64)
    distance = places[:, None] - places
    slopes = torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64)
    return -slopes[:, None, None] * (distance.abs() if falling == "both sides" else distance)


@pytest.mark.parametrize("falling", ["both sides", "one side"])
@pytest.mark.parametrize(
    ("seen", "label"), [(causal(1), "mask-off-by-one"), (None, "mask-missing")]
)  # fmt: skip
def test_a_causal_mask_under_linear_biases_is_named_whichever_way_they_go_on(falling, seen, label):
    parts = projections(KEYS)
    expected = attended(*parts, causal(), bias=biases(falling))
    assert said(parts, expected, attended(*parts, seen, bias=biases(falling))).label == label


def test_slopes_under_a_causal_mask_are_not_called_a_mask():
    parts = projections(KEYS)
    cause = said(parts, attended(*parts, causal(), bias=biases("both sides")), attended(*parts, causal()))
    assert cause.label == "missing-term"


SIDES = {"as it is": (3, 3), "right": (3, 2), "left": (2, 3), "wider": (4, 4), "right, wider": (3, 4)}


def local(real, before, after, itself):
    """What queries see that look some keys to either side, of which some are padding."""
    ahead = np.arange(KEYS) - np.arange(KEYS)[:, None]
    near = (ahead >= -before) & (ahead <= after) & real[:, None, None, :]
    return near | (ahead == 0) if itself else near


@pytest.mark.parametrize("itself", [True, False])
@pytest.mark.parametrize("name", [name for name in RECORDED if name != "an additive mask"])
@pytest.mark.parametrize("side", [side for side in SIDES if side != "as it is"])
def test_a_window_to_both_sides_beside_padding_that_is_another_is_named(side, name, itself):
    real = np.arange(KEYS) < np.array([KEYS, 9, 10])[:, None]  # so that every query sees something
    values = {"what the attention is given": real[:, None, None, :], "hidden ones are true": ~real,
              "a mask of a model": real, "token numbers": tokens(real), "lengths": real.sum(axis=1)}  # fmt: skip
    parts = projections(KEYS)
    expected, found = (attended(*parts, local(real, *SIDES[one], itself)) for one in ("as it is", side))
    cause = said(parts, expected, found, dict.fromkeys(RECORDED[name], values[name]))
    assert cause.label == "window-off-by-one", cause


def test_padding_that_is_ignored_within_a_window_to_both_sides_is_named():
    real = np.arange(KEYS) < np.array([KEYS, 9, 10])[:, None]
    parts = projections(KEYS)
    expected, found = (attended(*parts, local(one, 3, 3, True)) for one in (real, np.ones_like(real)))
    cause = said(parts, expected, found, {Site(0, "input", "input", "visible"): real})
    assert cause.label == "mask-missing", cause
