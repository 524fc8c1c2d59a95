"""Masks: what a query may see, moved, left out or applied in the wrong way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attention_models import Config, evidence, noisy

from firstdrift.causes.attention import HYPOTHESES
from firstdrift.causes.evidence import Evidence
from firstdrift.causes.hypotheses import explain
from firstdrift.sites import Site

LLAMA = Config(heads=4, kv_heads=2, theta=1e4)
MISTRAL = replace(LLAMA, window=15)
NARROW = Config(window=4)
BERT = Config(causal=None, padding="keep")
PADDED = replace(LLAMA, padding="keep")
LOCAL = Config(causal=None, reach=3)

CHANGES = [
    ("mask-off-by-one", LLAMA, {"causal": 1}, {"diagonal": 1}),
    ("mask-off-by-one", LLAMA, {"causal": -1}, {"diagonal": -1}),
    ("mask-off-by-one", LLAMA, {"causal": -1, "hidden": -1e9}, {"diagonal": -1}),
    ("mask-off-by-one", Config(), {"causal": 1}, {}),
    ("mask-missing", LLAMA, {"causal": None}, {}),
    ("mask-missing", Config(causal=None), {"causal": 0}, {}),
    ("mask-missing", LLAMA, {"hidden": 0.0}, {"hidden": 0.0}),
    ("mask-missing", LLAMA, {"hidden": 1e-9}, {"hidden": 0.0}),
    ("op-order", LLAMA, {"late": True}, {}),
    ("window-off-by-one", MISTRAL, {"window": 16}, {"window": 16, "reference_window": 15}),
    ("window-off-by-one", MISTRAL, {"window": 14}, {"window": 14}),
    ("window-off-by-one", NARROW, {"window": 5}, {"window": 5, "reference_window": 4}),
    ("window-off-by-one", LOCAL, {"reach": 4}, {"window": 4}),
    ("window-off-by-one", LLAMA, {"window": 9}, {"window": 9}),
    ("mask-missing", MISTRAL, {"window": None}, {}),
    ("mask-missing", LOCAL, {"reach": None}, {}),
    ("mask-missing", BERT, {"padding": ""}, {}),
    ("mask-missing", PADDED, {"padding": ""}, {}),
    ("mask-missing", replace(BERT, padding=""), {"padding": "keep"}, {}),
    ("mask-missing", BERT, {"padding": "drop"}, {}),
]


def padding(side: str) -> torch.Tensor:
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[1, slice(18, None) if side == "right" else slice(None, 6)] = 0
    return mask


@pytest.mark.parametrize(("dtype", "noise"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize(("label", "reference", "changes", "parameters"), CHANGES)
def test_one_change_of_what_is_seen_is_named(
    label: str, reference: Config, changes: dict[str, Any], parameters: dict[str, Any], dtype: torch.dtype, noise: float
) -> None:
    masked = reference.padding or changes.get("padding")
    given = evidence(reference, noise=noise, dtype=dtype, mask=padding("right") if masked else None, **changes)
    cause = explain(given, HYPOTHESES)
    assert cause.label == label
    assert {name: cause.parameters[name] for name in parameters} == parameters


@pytest.mark.parametrize("reference", [BERT, replace(PADDED, hidden=-1e9)])
def test_padding_on_the_left_that_is_ignored_is_named(reference: Config) -> None:
    given = evidence(reference, mask=padding("left"), padding="")
    assert explain(given, HYPOTHESES).label == "mask-missing"


@pytest.mark.parametrize(("label", "reference", "changes", "parameters"), [
    one for one in CHANGES if one[0] in ("mask-missing", "mask-off-by-one") and one[1] in (LLAMA, Config())
])  # fmt: skip
def test_one_change_of_what_is_seen_is_named_under_the_noise_of_a_coarse_dtype(
    label: str, reference: Config, changes: dict[str, Any], parameters: dict[str, Any]
) -> None:
    assert explain(noisy(evidence(reference, **changes), 3e-3), HYPOTHESES).label == label


@pytest.mark.parametrize("kind", ["bool", "additive", "additive with padding"])
def test_a_mask_that_was_given_with_the_causal_one_in_it_is_taken_apart(kind: str) -> None:
    mask = padding("right") if kind.endswith("padding") else None
    given = evidence(LLAMA if mask is None else PADDED, mask=mask, causal=1)
    seen = np.tri(24, dtype=bool)[None, None].repeat(2, axis=0)
    if mask is not None:
        seen = seen & mask.numpy().astype(bool)[:, None, None, :]
    recorded = seen if kind == "bool" else np.where(seen, 0.0, np.finfo(np.float32).min)
    inputs = {name: value for name, value in given.inputs.items() if "mask" not in name}
    inputs["layers.0.attn mask"] = recorded
    cause = explain(replace(given, inputs=inputs, candidate_inputs=inputs), HYPOTHESES)
    assert cause.label == "mask-off-by-one"


def test_a_mask_aligned_at_the_wrong_end_of_a_cache_is_named() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 16, dtype=torch.float64) for n in (5, 12, 12))
    outs = []
    for ahead in (7, 0):
        seen = torch.arange(12)[None] <= torch.arange(5)[:, None] + ahead
        outs.append(nn_attention(q, k, v, seen))
    flat = {f"attn.{name}_proj": x.transpose(1, 2).flatten(2).numpy() for name, x in (("q", q), ("k", k), ("v", v))}
    given = Evidence(Site(0, "fwd", "attn.o_proj", "in.0"), outs[0], outs[1], 1e-13, inputs=flat, candidate_inputs=flat)
    assert explain(given, HYPOTHESES).label == "mask-off-by-one"


def nn_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> np.ndarray:
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return np.asarray(out.transpose(1, 2).flatten(2).numpy())


@pytest.mark.parametrize("kind", ["values", "scale"])
def test_what_is_no_mask_is_not_called_one(kind: str) -> None:
    given = evidence(LLAMA, scale=1.0) if kind == "scale" else evidence(LLAMA)
    if kind == "values":
        found = given.expected.copy()
        found[:, 5:] *= 1.2
        given = replace(given, found=found)
    assert explain(given, HYPOTHESES).label in ("attention-scale", "unknown")
