"""Attention: one change between two attentions of the same weights is named, whatever the attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attention_models import Config, Weights, evidence, noisy
from torch import nn

from firstdrift.causes.attention import HYPOTHESES
from firstdrift.causes.evidence import Evidence
from firstdrift.causes.hypotheses import explain
from firstdrift.sites import Site

LLAMA = Config(heads=4, kv_heads=2, theta=1e4)
GPT = Config(fused="blocks")
NEOX = Config(fused="heads", theta=1e4, rotary=8)
PLAIN = Config()
ENCODER = Config(causal=None)
GEMMA = Config(heads=4, kv_heads=2, softcap=5.0, theta=1e4, scale=0.2)
FUSED_GEMMA = Config(fused="blocks", heads=8, kv_heads=4, softcap=5.0, theta=1e4, rotary=4, window=9)
ALIBI = Config(heads=6, kv_heads=6, width=96, slopes="standard")
NORMED = Config(norm="rms", theta=1e4)
T5 = Config(causal=None, relative=True, scale=1.0)

SCORES = [
    ("attention-scale", PLAIN, {"scale": 1.0}, {"name": "sqrt(head_dim)"}),
    ("attention-scale", PLAIN, {"scale": 64**-0.5}, {"name": "1/sqrt(heads)"}),
    ("attention-scale", PLAIN, {"scale": 4.0}, {"name": "head_dim"}),
    ("attention-scale", LLAMA, {"scale": 0.27}, {"name": None}),
    ("attention-scale", ENCODER, {"scale": 1.0}, {}),
    ("attention-scale", GEMMA, {"scale": 0.25}, {}),
    ("softcap", GEMMA, {"softcap": None}, {"softcap": None}),
    ("softcap", LLAMA, {"softcap": 5.0}, {"reference_softcap": None}),
    ("softcap", PLAIN, {"softcap": 7.3}, {}),
    ("alibi-slope", ALIBI, {"slopes": "naive"}, {}),
    ("alibi-slope", ALIBI, {"slopes": "late"}, {}),
    ("missing-term", ALIBI, {"slopes": ""}, {}),
    ("missing-term", T5, {"relative": False}, {}),
    ("missing-term", replace(T5, relative=False), {"relative": True}, {}),
    ("norm-missing", NORMED, {"norm": ""}, {}),
    ("norm-axis", ENCODER, {"over": -2}, {"axis": "queries"}),
    ("norm-axis", ENCODER, {"over": 1}, {"axis": "heads"}),
    ("skipped-op", ENCODER, {"over": 0}, {}),
    ("mask-missing", LLAMA, {"surplus": 4}, {"keys": 4}),
    ("mask-missing", GPT, {"surplus": 2}, {"keys": 2}),
    ("mask-missing", ENCODER, {"surplus": 16}, {"keys": 16}),
    ("mask-missing", GEMMA, {"surplus": 64}, {"keys": 64}),
]
HEADS = [
    ("gqa-order", LLAMA, {"tiled": True}, {"order": "tiled"}),
    ("gqa-order", replace(LLAMA, tiled=True), {"tiled": False}, {"order": "repeated"}),
    ("head-permutation", PLAIN, {"joined": "htd"}, {"joined": "htd"}),
    ("head-permutation", LLAMA, {"joined": "tdh"}, {"joined": "tdh"}),
    ("head-permutation", LLAMA, {"divided": "htd"}, {"divided": "htd"}),
    ("head-permutation", GPT, {"divided": "tdh"}, {"divided": "tdh"}),
    ("head-permutation", ENCODER, {"joined": "htd"}, {"joined": "htd"}),
    ("head-permutation", LLAMA, {"head_order": (3, 2, 1, 0)}, {"heads": [3, 2, 1, 0]}),
    ("head-permutation", PLAIN, {"head_order": (0, 2, 1, 3)}, {"heads": [0, 2, 1, 3]}),
    ("qkv-order", PLAIN, {"roles": "kqv"}, {"order": "kqv"}),
    ("qkv-order", PLAIN, {"roles": "qvk"}, {"order": "qvk"}),
    ("qkv-order", GPT, {"roles": "kqv"}, {}),
    ("qkv-order", GPT, {"fused": "heads"}, {"split": "heads"}),
    ("qkv-order", GPT, {"fused": "features"}, {"split": "features"}),
    ("qkv-order", NEOX, {"fused": "blocks"}, {"split": "blocks"}),
]
ROPE = [
    ("rope-interleave", LLAMA, {"pairing": "interleaved"}, {}),
    ("rope-interleave", replace(LLAMA, pairing="interleaved"), {"pairing": "half"}, {}),
    ("rope-theta", LLAMA, {"theta": 5e5}, {"theta": 5e5, "reference_theta": 1e4}),
    ("rope-theta", replace(LLAMA, theta=37000.0), {"theta": 1e4}, {"theta": 1e4}),
    ("rope-theta", LLAMA, {"theta": 12345.0}, {}),
    ("rope-scaling", LLAMA, {"scaling": "linear"}, {"factor": 8.0}),
    ("rope-scaling", replace(LLAMA, scaling="linear"), {"scaling": ""}, {}),
    ("rope-scaling", replace(LLAMA, theta=5e5, scaling="llama3"), {"scaling": ""}, {}),
    ("rope-scaling", replace(LLAMA, theta=5e5), {"scaling": "llama3"}, {"kind": "llama3"}),
    ("rope-scaling", replace(LLAMA, scaling="tail"), {"scaling": ""}, {}),
    ("rope-scaling", LLAMA, {"scaling": "tail"}, {}),
    ("rope-partial", NEOX, {"rotary": 16}, {"rotary_dims": 16}),
    ("rope-partial", LLAMA, {"rotary": 8}, {"rotary_dims": 8}),
    ("rope-partial", NEOX, {"exponent": 16}, {}),
    ("rope-partial", FUSED_GEMMA, {"rotary": 8}, {"rotary_dims": 8, "reference_rotary_dims": 4}),
    ("rope-theta", FUSED_GEMMA, {"theta": 1e6}, {}),
    ("rope-precision", LLAMA, {"precision": "bf16 frequencies"}, {"dtype": "bf16"}),
    ("rope-precision", LLAMA, {"precision": "bf16 angles"}, {"stage": "angles"}),
    ("rope-precision", LLAMA, {"precision": "f16 tables"}, {"dtype": "f16"}),
    ("position-shift", LLAMA, {"shift": 1}, {"shift": 1}),
    ("position-shift", LLAMA, {"shift": -3}, {"shift": -3}),
    ("skipped-op", LLAMA, {"theta": None}, {}),
    ("skipped-op", LLAMA, {"sides": "q"}, {}),
]
ALL = SCORES + HEADS + ROPE
PRECISIONS = [(torch.float32, 1e-6), (torch.float64, 1e-13)]


@pytest.mark.parametrize(("dtype", "noise"), PRECISIONS)
@pytest.mark.parametrize(("label", "reference", "changes", "parameters"), ALL)
def test_one_change_is_named_between_the_projections_and_the_output(
    label: str, reference: Config, changes: dict[str, Any], parameters: dict[str, Any], dtype: torch.dtype, noise: float
) -> None:
    cause = explain(evidence(reference, noise=noise, dtype=dtype, **changes), HYPOTHESES)
    assert cause.label == label
    assert {name: cause.parameters[name] for name in parameters} == parameters


@pytest.mark.parametrize(
    ("label", "reference", "changes"),
    [
        ("attention-scale", PLAIN, {"scale": 1.0}),
        ("rope-interleave", LLAMA, {"pairing": "interleaved"}),
        ("rope-theta", LLAMA, {"theta": 5e5}),
        ("gqa-order", LLAMA, {"tiled": True}),
        ("head-permutation", LLAMA, {"joined": "htd"}),
        ("head-permutation", GPT, {"joined": "htd"}),
        ("qkv-order", GPT, {"roles": "kqv"}),
        ("position-shift", LLAMA, {"shift": 1}),
    ],
)
def test_one_change_is_named_behind_the_output_projection(
    label: str, reference: Config, changes: dict[str, Any]
) -> None:
    assert explain(evidence(reference, at="out", **changes), HYPOTHESES).label == label


@pytest.mark.parametrize("at", ["scores", "probabilities"])
@pytest.mark.parametrize(
    ("label", "reference", "changes"),
    [
        ("attention-scale", PLAIN, {"scale": 1.0}),
        ("softcap", PLAIN, {"softcap": 5.0}),
        ("rope-theta", LLAMA, {"theta": 5e5}),
        ("rope-interleave", LLAMA, {"pairing": "interleaved"}),
        ("gqa-order", LLAMA, {"tiled": True}),
        ("alibi-slope", ALIBI, {"slopes": "late"}),
        ("missing-term", T5, {"relative": False}),
    ],
)
def test_one_change_is_named_on_scores_and_probabilities(
    at: str, label: str, reference: Config, changes: dict[str, Any]
) -> None:
    assert explain(evidence(reference, at=at, **changes), HYPOTHESES).label == label


@pytest.mark.parametrize(
    ("label", "reference", "changes"),
    [
        ("attention-scale", PLAIN, {"scale": 1.0}),
        ("gqa-order", LLAMA, {"tiled": True}),
        ("head-permutation", PLAIN, {"joined": "htd"}),
        ("rope-interleave", LLAMA, {"pairing": "interleaved"}),
        ("rope-theta", LLAMA, {"theta": 5e5}),
        ("qkv-order", GPT, {"roles": "kqv"}),
        ("softcap", replace(LLAMA, softcap=None), {"softcap": 1.0}),
    ],
)
def test_one_change_is_named_under_the_noise_of_a_coarse_dtype(
    label: str, reference: Config, changes: dict[str, Any]
) -> None:
    assert explain(noisy(evidence(reference, **changes), 3e-3), HYPOTHESES).label == label


@pytest.mark.parametrize("reference", [PLAIN, LLAMA, GPT, NEOX, ENCODER, GEMMA, ALIBI])
@pytest.mark.parametrize("kind", ["noise added", "rows shifted", "scaled", "zeros", "not finite"])
def test_what_no_attention_does_is_not_explained(reference: Config, kind: str) -> None:
    given = evidence(reference)
    found = {
        "noise added": given.expected + 0.1 * np.random.default_rng(0).normal(size=given.expected.shape),
        "rows shifted": np.roll(given.expected, 1, axis=1),
        "scaled": 1.3 * given.expected,
        "zeros": 0 * given.expected,
        "not finite": given.expected * np.nan,
    }[kind]
    assert explain(replace(given, found=found), HYPOTHESES).label == "unknown"


@pytest.mark.parametrize("reference", [PLAIN, LLAMA, ENCODER])
def test_two_changes_at_once_are_not_called_one(reference: Config) -> None:
    given = evidence(reference, scale=1.0, head_order=(1, 0, 2, 3), softcap=3.0)
    assert explain(given, HYPOTHESES).label == "unknown"


@pytest.mark.parametrize("reference", [PLAIN, LLAMA, ENCODER])
def test_nothing_is_said_where_the_formula_does_not_make_the_reference(reference: Config) -> None:
    given = evidence(reference, scale=1.0)
    other = {name: value[:, ::-1].copy() for name, value in given.inputs.items()}
    assert list(HYPOTHESES[0](replace(given, inputs=other))) == []


@pytest.mark.parametrize(("tokens", "batch"), [(1, 1), (2, 1), (3, 2)])
def test_few_tokens_give_no_wrong_name(tokens: int, batch: int) -> None:
    given = evidence(LLAMA, tokens=tokens, batch=batch, scale=1.0)
    assert explain(given, HYPOTHESES).label in ("attention-scale", "unknown")


@pytest.mark.parametrize("reference", [PLAIN, LLAMA])
def test_stated_heads_are_used(reference: Config) -> None:
    given = replace(evidence(reference, scale=1.0), attrs={"num_heads": 4, "head_dim": 16})
    assert explain(given, HYPOTHESES).label == "attention-scale"


def test_recorded_tables_give_the_frequencies_of_a_rule_of_their_own() -> None:
    positions, rates = np.arange(24)[:, None], 1.7 ** -np.arange(8.0)
    cos, sin = (np.tile(one(positions * rates), 2)[None] for one in (np.cos, np.sin))
    given = evidence(replace(LLAMA, theta=1.7**8), scale=1.0)
    tables = {"rotary cos": cos, "rotary sin": sin}
    given = replace(given, inputs={**given.inputs, **tables}, candidate_inputs={**given.candidate_inputs, **tables})
    assert explain(given, HYPOTHESES).label == "attention-scale"


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize(
    ("label", "changes"),
    [("attention-scale", {"scale": 1.0}), ("rope-theta", {"theta": 5e5}), ("gqa-order", {"tiled": True})],
)
def test_queries_and_keys_may_be_recorded_behind_their_norms(
    heads_first: bool, label: str, changes: dict[str, Any]
) -> None:
    given = evidence(replace(LLAMA, norm="rms"), **changes)
    inputs = dict(given.inputs)
    for name, heads in (("q", 4), ("k", 2)):
        x = inputs.pop(f"layers.0.attn.{name}_proj").reshape(2, 24, heads, 16)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True))
        inputs[f"layers.0.attn.{name}_norm"] = x.transpose(0, 2, 1, 3) if heads_first else x
    assert explain(replace(given, inputs=inputs, candidate_inputs=inputs), HYPOTHESES).label == label


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    ("label", "reference", "candidate"),
    [
        ("mask-missing", {"key_padding_mask": "padding"}, {}),
        ("mask-missing", {"attn_mask": "causal"}, {}),
        ("mask-missing", {}, {"attn_mask": "causal"}),
        ("mask-off-by-one", {"attn_mask": "causal"}, {"attn_mask": "late"}),
    ],
)
def test_the_masks_of_torchs_own_attention_are_named(
    batch_first: bool, label: str, reference: dict[str, str], candidate: dict[str, str]
) -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(32, 4, batch_first=batch_first)
    with torch.no_grad():
        model.in_proj_weight.mul_(3)
    padding = torch.zeros(2, 10, dtype=torch.bool)
    padding[1, 7:] = True
    hidden = torch.full((10, 10), -torch.inf)
    masks = {"padding": padding, "causal": hidden.triu(1), "late": hidden.triu(2)}
    x = torch.randn(2, 10, 32) if batch_first else torch.randn(10, 2, 32)
    with torch.no_grad():
        expected, found = (
            model(x, x, x, **{key: masks[name] for key, name in side.items()})[0].double().numpy()
            for side in (reference, candidate)
        )
    inputs = {f"in.{n}": x.double().numpy() for n in range(3)}
    inputs |= {f"in.{key}": masks[name].numpy() for key, name in reference.items()}
    around = Weights(model, model, "attn")
    own = {site.port: around.reference(site) for site in around.sites("weight") if site.name == "attn"}
    given = Evidence(
        Site(0, "fwd", "attn", "out.0"), expected, found, 1e-6, op="MultiheadAttention", inputs=inputs,
        candidate_inputs=inputs, parameters=own, candidate_parameters=own, around=around,
    )  # fmt: skip
    assert explain(given, HYPOTHESES).label == label


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "odd",
    [np.zeros((0, 4)), np.zeros((2, 0, 8)), np.zeros(()), np.arange(5), np.full((2, 24, 64), np.nan), np.ones((7, 7))],
)
def test_inputs_of_another_shape_say_nothing(odd: np.ndarray) -> None:
    given = evidence(LLAMA, scale=1.0)
    for name in given.inputs:
        inputs = {**given.inputs, name: odd}
        assert explain(replace(given, inputs=inputs), HYPOTHESES).label == "unknown"
        assert explain(replace(given, candidate_inputs=inputs), HYPOTHESES).label == "unknown"
