"""Causes of weights that differ before anything was computed."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch

from firstdrift.core.sites import Site
from firstdrift.explain.evidence import Evidence, Surroundings
from firstdrift.explain.relations import strange_weights as weights
from firstdrift.explain.relations.hypotheses import explain

SITE = Site(0, "weight", "layers.0.attn.q_proj", "weight")
BY_NAME = {"op": "Linear"}


class Around(Surroundings):
    def __init__(self, tensors):
        self.tensors = tensors

    def sites(self, phase):
        return list(self.tensors) if phase == "weight" else []

    def reference(self, site):
        return self.tensors[site][0]

    def candidate(self, site):
        return self.tensors[site][1]


def weight(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(np.float64)


def evidence_of(expected, found, noise=1e-9, op="", port="weight", others=None):
    around = Surroundings() if others is None else Around(others)
    site = SITE._replace(port=port)
    return Evidence(site, np.asarray(expected, np.float64), np.asarray(found, np.float64), noise, op=op, around=around)


def rows(array, *order):
    return np.concatenate([np.split(array, len(order))[one] for one in order])


def per_head(array, heads):
    """Rows of every head from halves to interleaved: Meta's q and k weights against those of Hugging Face."""
    shape = array.shape
    return array.reshape(heads, 2, shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(shape)


def int8_rows(array):
    step = np.abs(array).max(1, keepdims=True) / 127
    return (np.round(array / step) * step).astype(np.float32)


def int8_tensor(array):
    low, span = float(array.min()), float(np.ptp(array))
    step, zero = span / 255, round(-low / span * 255)
    return torch.fake_quantize_per_tensor_affine(torch.tensor(array).float(), step, zero, 0, 255).double().numpy()


def int4_groups(array, zero=0):
    groups = array.reshape(-1, 32)
    step = np.abs(groups).max(1, keepdims=True) / 7
    return ((np.round(groups / step) + zero) * step).reshape(array.shape)


def adapter(array, rank, scale):
    a, b = weight(rank, array.shape[1], seed=1), weight(array.shape[0], rank, seed=2)
    return array + scale * b @ a


def rounded_to(dtype):
    return lambda w: w.astype(np.float32).astype(dtype).astype(np.float64)


def cut_to_bf16(array):
    return (array.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


CASES = [
    # label, shape, transformation, further facts
    ("transpose", (24, 24), lambda w: w.T, {}),
    ("transpose", (24, 16), lambda w: w.T.reshape(24, 16), {}),
    ("transpose", (24, 16), lambda w: w.reshape(16, 24).T, {}),
    ("transpose", (4, 16, 16), lambda w: w.swapaxes(1, 2), {"op": "Experts"}),
    ("axis-order", (6, 6, 10), lambda w: w.swapaxes(0, 1), {"op": "Experts"}),
    ("conv-layout", (8, 8, 3, 3), lambda w: w.swapaxes(0, 1), {"op": "Conv2d"}),
    ("conv-layout", (16, 8, 3, 3), lambda w: w.transpose(2, 3, 1, 0).reshape(16, 8, 3, 3), {"op": "Conv2d"}),
    ("conv-layout", (16, 8, 5), lambda w: w.swapaxes(0, 1).reshape(16, 8, 5), {"op": "Conv1d"}),
    ("conv-flip", (8, 4, 3, 3), lambda w: w[..., ::-1, ::-1], {"op": "Conv2d"}),
    ("conv-flip", (8, 4, 5), lambda w: w[..., ::-1], {"op": "Conv1d"}),
    ("conv-flip", (8, 4, 3, 3), lambda w: w.swapaxes(2, 3), {"op": "Conv2d"}),
    ("swapped-halves", (24, 16), lambda w: rows(w, 1, 0), {}),
    ("qkv-order", (48, 16), lambda w: rows(w, 1, 0, 2), {}),
    ("qkv-order", (48, 16), lambda w: rows(w, 2, 0, 1), {"port": "in_proj_weight"}),
    ("qkv-order", (96, 32), lambda w: w.reshape(3, 4, 8, 32).swapaxes(0, 1).reshape(96, 32), {}),
    ("gate-order", (48, 16), lambda w: rows(w, 1, 0, 2), {"op": "GRU", "port": "weight_hh_l0"}),
    ("gate-order", (64, 16), lambda w: rows(w, 0, 2, 1, 3), {"op": "LSTM", "port": "weight_ih_l0"}),
    ("gate-order", (64, 16), lambda w: rows(w, 0, 1, 3, 2), {}),
    ("gate-order", (64,), lambda w: rows(w, 0, 2, 1, 3), {"op": "LSTM", "port": "bias_ih_l0"}),
    ("head-permutation", (64, 64), lambda w: rows(w, *[3, 1, 0, 2, 7, 5, 6, 4]), {}),
    ("head-permutation", (60, 64), lambda w: w.reshape(5, 12, 64).swapaxes(0, 1).reshape(60, 64), {}),
    ("rope-interleave", (64, 64), lambda w: per_head(w, 4), {}),
    ("rope-interleave", (32, 64), lambda w: per_head(w, 2), {}),
    ("interleave", (64, 16), lambda w: per_head(w, 1), {}),
    ("interleave", (16, 64), lambda w: per_head(w.T, 1).T, {}),
    ("axis-order", (16, 60), lambda w: w.reshape(16, 5, 12).swapaxes(1, 2).reshape(16, 60), {}),
    ("index-shift", (100, 16), lambda w: np.roll(w, 1, 0), {"op": "Embedding"}),
    ("index-shift", (100, 16), lambda w: np.concatenate([w[1:], weight(1, 16, seed=3)]), {"op": "Embedding"}),
    ("permutation", (48, 16), lambda w: w[np.random.default_rng(0).permutation(48)], {}),
    ("permutation", (48, 16), lambda w: np.random.default_rng(0).permuted(w.ravel()).reshape(48, 16), {}),
    ("norm-plus-one", (32,), lambda w: w + 1, {"op": "RMSNorm"}),
    ("norm-plus-one", (32,), lambda w: w - 1, {"op": "RMSNorm"}),
    ("quantisation", (48, 64), int8_rows, {}),
    ("quantisation", (48, 64), int8_tensor, {}),
    ("quantisation", (48, 64), lambda w: int8_rows(w.T).T, {}),
    ("quantisation", (48, 64), int4_groups, {}),
    ("dtype-rounding", (24, 16), rounded_to(ml_dtypes.bfloat16), {}),
    ("dtype-rounding", (24, 16), rounded_to(np.float16), {}),
    ("dtype-rounding", (24, 16), rounded_to(ml_dtypes.float8_e4m3fn), {}),
    ("dtype-rounding", (24, 16), cut_to_bf16, {}),
    ("uninitialised", (24, 16), np.zeros_like, {}),
    ("uninitialised", (32,), np.ones_like, {"op": "LayerNorm"}),
    ("uninitialised", (24, 16), lambda w: w * 1e-42, {}),
    ("uninitialised", (24, 16), lambda w: np.concatenate([w[:20], 0 * w[20:]]), {}),
    ("scale", (24, 16), lambda w: w * 2, {}),
    ("scale", (24, 16), lambda w: w * -0.37, {}),
    ("missing-term", (64, 48), lambda w: adapter(w, 4, 0.1), {}),
    ("missing-term", (64, 48), lambda w: adapter(w, 1, 2.0), {}),
    ("wrong-weight", (24, 16), lambda w: weight(24, 16, seed=5), {}),
    ("wrong-weight", (24, 16), lambda w: 0.01 * weight(24, 16, seed=5), {}),
    ("unknown", (24, 16), lambda w: w + 0.3 * weight(24, 16, seed=5), {}),
    ("unknown", (24, 16), lambda w: w @ np.linalg.qr(weight(16, 16, seed=5))[0], {}),
    ("unknown", (24, 16), lambda w: np.concatenate([w[:20], weight(4, 16, seed=6)]), {}),
    ("unknown", (24, 16), lambda w: np.concatenate([w[:20], w[20:] + 0.3 * weight(4, 16, seed=6)]), {}),
    ("unknown", (24, 16), lambda w: np.concatenate([w[:20], w[20:] @ np.linalg.qr(weight(16, 16, seed=5))[0]]), {}),
    ("unknown", (8,), lambda w: weight(8, seed=5), {}),
    ("unknown", (24, 16), lambda w: w * np.nan, {}),
]  # fmt: skip
NAMES = [f"{label}-{number}" for number, (label, *_) in enumerate(CASES)]


@pytest.mark.parametrize(("label", "shape", "transform", "facts"), CASES, ids=NAMES)
def test_what_happened_to_a_weight_is_named(label, shape, transform, facts):
    expected = weight(*shape)
    cause = explain(evidence_of(expected, transform(expected), **facts), weights.HYPOTHESES)
    assert cause.label == label, cause


LAYOUTS = [case for case in CASES if case[0] in {
    "transpose", "axis-order", "conv-layout", "conv-flip", "swapped-halves", "qkv-order", "gate-order",
    "rope-interleave", "interleave", "scale",
} and len(case[1]) > 1]  # fmt: skip


@pytest.mark.parametrize("noise", [1e-7, 3e-3])
@pytest.mark.parametrize(("label", "shape", "transform", "facts"), LAYOUTS)
def test_layouts_are_named_through_the_rounding_of_storage(label, shape, transform, facts, noise):
    expected = weight(*shape)
    found = transform(expected) * (1 + noise * np.random.default_rng(1).uniform(-1, 1, shape))
    cause = explain(evidence_of(expected, found, noise, **facts), weights.HYPOTHESES)
    assert cause.label == label, cause


def test_the_rank_of_a_missing_adapter_is_told():
    expected = weight(64, 48)
    cause = explain(evidence_of(expected, adapter(expected, 6, 0.01)), weights.HYPOTHESES)
    assert (cause.label, cause.parameters["rank"]) == ("missing-term", 6)


@pytest.mark.parametrize("zero", [-1, 1, 3])
def test_a_zero_point_off_by_whole_steps_is_told(zero):
    expected = int4_groups(weight(48, 64))
    cause = explain(evidence_of(expected, int4_groups(weight(48, 64), zero)), weights.HYPOTHESES)
    assert (cause.label, cause.parameters["steps"]) == ("zero-point", zero)


def other(name, expected, found=None):
    return {Site(0, "weight", name, "weight"): (expected, expected if found is None else found)}


def test_exchanged_tensors_are_named_with_their_partner():
    a, b = weight(24, 16), weight(24, 16, seed=1)
    cause = explain(evidence_of(a, b, others=other("layers.0.mlp.up", b, a)), weights.HYPOTHESES)
    assert (cause.label, cause.parameters) == ("weight-swap", {"with": "layers.0.mlp.up.weight"})


def test_a_tensor_copied_over_another_is_a_wrong_weight():
    a, b = weight(24, 16), weight(24, 16, seed=1)
    cause = explain(evidence_of(a, b, others=other("layers.1.attn.q_proj", b)), weights.HYPOTHESES)
    assert (cause.label, cause.parameters) == ("wrong-weight", {"of": "layers.1.attn.q_proj.weight"})


def test_a_head_that_is_not_tied_is_told_from_one_not_loaded():
    a = weight(24, 16)
    tied = explain(evidence_of(a, weight(24, 16, seed=2), others=other("embed", a)), weights.HYPOTHESES)
    assert (tied.label, tied.parameters) == ("untied-head", {"tied_to": "embed.weight"})
    both = other("embed", a, weight(24, 16, seed=2))  # both names hold the wrong numbers: still tied
    assert explain(evidence_of(a, weight(24, 16, seed=2), others=both), weights.HYPOTHESES).label == "wrong-weight"


def test_a_tied_head_that_was_rounded_is_rounded():
    a = weight(24, 16)
    cause = explain(evidence_of(a, rounded_to(np.float16)(a), others=other("embed", a)), weights.HYPOTHESES)
    assert cause.label == "dtype-rounding"


def test_tiled_key_heads_are_told_from_repeated_ones():
    heads = weight(4, 1, 8, 16)
    repeated, tiled = np.repeat(heads, 3, 1), np.repeat(heads, 3, 1).swapaxes(0, 1)
    cause = explain(evidence_of(repeated.reshape(96, 16), tiled.reshape(96, 16)), weights.HYPOTHESES)
    assert (cause.label, cause.parameters) == ("gqa-order", {"kv_heads": 4, "repeats": 3})


@pytest.mark.parametrize("phase", ["fwd", "grad", "weight_after"])
def test_only_weights_are_explained_here(phase):
    evidence = evidence_of(weight(24, 24), weight(24, 24).T)
    there = replace(evidence, site=SITE._replace(phase=phase))
    assert explain(there, weights.HYPOTHESES).label == "unknown"


@pytest.mark.parametrize("label", ["permutation", "wrong-weight", "rope-interleave"])
def test_a_large_weight_is_explained(label):
    expected = weight(2560, 4000)
    found = {
        "permutation": lambda: expected[np.random.default_rng(0).permutation(2560)],
        "wrong-weight": lambda: weight(2560, 4000, seed=1),
        "rope-interleave": lambda: per_head(expected, 20),
    }[label]()
    assert explain(evidence_of(expected, found), weights.HYPOTHESES).label == label
