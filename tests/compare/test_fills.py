"""A mask's fill, the huge negative constant where nothing may be seen, hides nothing beside it and is not judged."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import firstdrift as fd
from firstdrift.core import scratch
from firstdrift.explain.masked_fills import without_fills
from firstdrift.judge.measure.result import Why

FILLS = [-np.inf, float(np.finfo(np.float32).min), -1e30, -1e9]
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def scores(seed=0, shape=(2, 3, 12, 12)):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def masked(values, fill, *, added=False):
    hidden = ~np.tri(values.shape[-1], dtype=bool)
    with np.errstate(over="ignore"):
        return np.where(hidden, values + fill if added else fill, values).astype(values.dtype)


def verdict(tmp_path, reference, candidate, op="Scores"):
    for name, array in (("ref", reference), ("cand", candidate)):
        with fd.Writer(tmp_path / name) as writer:
            writer.put("scores", "fwd", array, op=op)
    return fd.diff(tmp_path / "ref", tmp_path / "cand")


@pytest.mark.parametrize("fill", [*FILLS, -1e4])
@pytest.mark.parametrize("added", [False, True])
def test_an_error_beside_a_fill_is_seen(tmp_path, fill, added):
    reference, candidate = masked(scores(), fill, added=added), masked(scores() * np.float32(1.001), fill, added=added)
    found = verdict(tmp_path, reference, candidate)
    assert found.exit_code != 0, found.pairs[0].chain


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("other", FILLS)
def test_a_mask_that_hides_another_place_is_a_drift(tmp_path, fill, other):
    candidate = masked(scores(), other)
    candidate[1, 2, 7, 7] = other
    assert verdict(tmp_path, masked(scores(), fill), candidate).verdict == "drift"


def test_where_nobody_says_what_reads_a_fill_another_one_is_not_called_right(tmp_path):
    assert verdict(tmp_path, masked(scores(), -1e9), masked(scores(), -1e30)).exit_code != 0


@pytest.mark.parametrize("outlier", [-300.0, -3e3, -3e5])
def test_a_wrong_outlier_channel_is_no_fill(tmp_path, outlier):
    reference = scores(shape=(4, 50, 64))
    reference[..., 9] = outlier * (1 + 0.05 * reference[..., 9])
    candidate = reference.copy()
    candidate[..., 9] *= 1.01
    assert verdict(tmp_path, reference, candidate).verdict == "drift"


@pytest.mark.parametrize("outlier", [-3e3, -3e5])
def test_an_outlier_channel_of_other_tokens_is_no_fill(tmp_path, outlier):
    reference = scores(shape=(4, 50, 64))
    reference[..., 9] = outlier * (1 + 0.05 * reference[..., 9])
    candidate = reference.copy()
    candidate[..., 9] = candidate[:, ::-1, 9]
    assert verdict(tmp_path, reference, candidate).verdict == "drift"


@pytest.mark.parametrize("constant", [-300.0, -2000.0])
def test_a_constant_channel_that_may_be_something_else_than_a_fill_is_judged(tmp_path, constant):
    reference = scores(shape=(4, 50, 64))
    reference[..., 9] = constant
    candidate = reference.copy()
    candidate[..., 9] *= 1.1
    assert verdict(tmp_path, reference, candidate).verdict == "drift"


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 99), fill=st.sampled_from([-6e4, -1e4, -np.inf]), data=st.data())
def test_only_what_is_hidden_on_both_sides_is_left_out(dtype, seed, fill, data):
    shape = data.draw(st.sampled_from([(5, 7), (2, 3, 4), (1, 1), (6, 1)]))
    hidden = np.random.default_rng(seed).random(shape) < data.draw(st.sampled_from([0.0, 0.2, 1.0]))
    ours, theirs = (np.where(hidden, fill, scores(seed + n, shape)).astype(dtype) for n in (0, 1))
    left = [np.isneginf(np.asarray(one, np.float64)) for one in without_fills(ours, theirs)]
    assert np.array_equal(left[0], hidden)
    assert np.array_equal(left[1], hidden)
    for before, after in zip((ours, theirs), without_fills(ours, theirs), strict=True):
        assert np.array_equal(before[~hidden], after[~hidden])
        assert after.dtype == before.dtype


def test_large_tensors_are_looked_at_in_slices(monkeypatch):
    ours, theirs = masked(scores(0), -1e9), masked(scores(1), -1e30)
    whole = without_fills(ours, theirs)
    monkeypatch.setattr(scratch, "CHUNK", 100)
    monkeypatch.setattr(scratch, "IN_MEMORY", 400)
    sliced = without_fills(ours, theirs)
    assert all(np.array_equal(a, b) for a, b in zip(whole, sliced, strict=True))
    assert np.isneginf(sliced[0]).sum() == 2 * 3 * 66


def test_nan_is_no_fill(tmp_path):
    reference = masked(scores(), -1e9)
    candidate = reference.copy()
    candidate[0, 0, 3, 2] = np.nan
    assert verdict(tmp_path, reference, candidate).verdict == "drift"


class Attention(nn.Module):
    """One that masks with the least number of the dtype it runs in, as much code does, or with another."""

    def __init__(self, factor=1.0, fill=None, hides=None):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.softmax = nn.Softmax(-1)
        self.factor, self.fill, self.hides = factor, fill, hides

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT / 4 * self.factor
        fill = torch.finfo(x.dtype).min if self.fill is None else self.fill
        hidden = ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if self.hides is not None:
            hidden[self.hides] = True
        return self.o(self.softmax(scores.masked_fill(hidden, fill)) @ self.v(x))


def attentions(reference_fill=None, **changes):
    torch.manual_seed(0)
    reference, candidate = Attention(fill=reference_fill), Attention(**changes)
    candidate.load_state_dict(reference.state_dict())
    return {"reference": reference, "candidate": candidate, "inputs": (torch.randn(4, 12, 16),)}


def traced(tmp_path, reference, candidate, inputs):
    for name, model in (("ref", reference), ("cand", candidate)):
        with fd.trace(model, tmp_path / name), torch.no_grad():
            model(*inputs)
    return fd.diff(tmp_path / "ref", tmp_path / "cand")


def at_scores(result):
    return next(pair for pair in result.pairs if (pair.site.name, pair.site.port) == ("softmax", "in.0"))


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("other", FILLS)
def test_which_fill_a_mask_has_is_no_drift_where_a_softmax_makes_nothing_of_it(tmp_path, fill, other):
    result = traced(tmp_path, **attentions(fill, fill=other))
    assert result.exit_code == 0, result.sentence
    assert at_scores(result).why == (Why.BIT_EQUAL if fill == other else Why.FILL)


@pytest.mark.parametrize(
    "changes", [{"fill": -3.0}, {"fill": -1e9, "hides": (7, 3)}, {"hides": (7, 3)}, {"factor": 1.001, "fill": -1e9},
                {"factor": 1.001}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("fill", FILLS[:2])
def test_a_fill_excuses_no_other_mask_and_no_other_score(tmp_path, fill, changes):
    result = traced(tmp_path, **attentions(fill, **changes))
    assert result.exit_code == 1, at_scores(result).chain
    assert result.first_drift.name == "softmax"


@pytest.mark.parametrize("fill", [None, -1e9, float("-inf")])
def test_live_models_may_mask_with_the_least_number_of_their_dtype(fill):
    assert fd.check(**attentions(fill=fill)).verdict in ("same", "noise")


@pytest.mark.parametrize("fill", [None, -1e9, float("-inf")])
def test_live_models_with_another_scale_are_told_at_the_scores(fill):
    result = fd.check(**attentions(factor=1.1, fill=fill))
    assert result.exit_code == 1
    found = result.first_drift
    assert (found.site.name, found.site.port) == ("softmax", "in.0")
    if fill == float("-inf"):  # a number in the place of infinity is taken for scores by what names causes
        assert found.cause.label == "attention-scale", found.cause.sentence
        assert "1.1" in found.cause.sentence


class Window(nn.Module):
    """Attention in windows, as Swin has it: the mask is made by the block and handed to the attention."""

    def __init__(self, fill, hidden=0):
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.fill, self.hidden = Attend(), fill, hidden

    def forward(self, x):
        window = torch.arange(x.shape[1]) // 4
        differs = window[:, None] != window[None]
        differs[: self.hidden, 0] = True
        return self.attend(x, torch.zeros(differs.shape).masked_fill(differs, self.fill))


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.softmax(q @ k.transpose(1, 2) + mask, -1) @ v


@pytest.mark.parametrize(
    ("fill", "hidden", "code"), [(-torch.inf, 0, 0), (-1e4, 0, 0), (-torch.inf, 1, 1), (-5.0, 0, 1)]
)
def test_a_mask_of_minus_a_hundred_may_be_minus_infinity(fill, hidden, code):
    torch.manual_seed(1)
    result = fd.check(reference=Window(-100.0), candidate=Window(fill, hidden), inputs=(torch.randn(2, 8, 8),))
    assert result.exit_code == code, result.sentence
