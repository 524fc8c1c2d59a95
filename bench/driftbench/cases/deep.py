"""Bugs far down in a deep decoder, where noise has grown and one channel is massive, as in trained models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from ..case import Case, Planted, Truth, glue, in_precisions, out, truth, weight
from ..faults import weights as w

DEPTH, AT = 12, 8
BLOCK = f"layers.{AT}"


def long(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Longer texts of the same words."""
    tokens = torch.cat([inputs[0].roll(shift, 1) for shift in (0, 5, 11)], 1)
    return tokens, torch.arange(tokens.shape[1])


def grown(x: torch.Tensor) -> torch.Tensor:
    """Embeddings with one massive channel."""
    x = 25 * x
    x[:, 11] += 40.0
    return x


COMMON: dict[str, Any] = {
    "config": {"depth": DEPTH, "bias": True},
    "inputs": long,
    "both_weights": (w.altered("embed_tokens.weight", grown),),
}


def deep(name: str, family: str, said: Truth | None, bugs: dict[str, Any], *ids: str, **more: Any) -> Case:
    return Case(f"llama/deep-{name}", "llama", family, said, Planted(bugs, {AT}), catalogue=ids, **COMMON, **more)


CASES = [
    deep("gqa-tile", "attention", truth(glue(f"{BLOCK}.attn.o_proj"), "gqa-order"), {"gqa-order": True}, "A14"),
    deep("rope-interleave", "rope", truth(glue(f"{BLOCK}.attn.o_proj"), "rope-interleave"), {"rope-interleave": True},
         "R02"),
    *in_precisions(
        deep("swapped-operands", "mlp", truth(glue(f"{BLOCK}.mlp.down_proj"), "swapped-operands"),
             {"swapped-operands": True}, "M04"),
        "fp32", "bf16", "mixed",
    ),
    deep("silu-gelu", "mlp", truth(glue(f"{BLOCK}.mlp.down_proj"), "activation-variant"), {"activation": F.gelu},
         "M02"),
    deep("norm-eps", "norm", truth(out(f"{BLOCK}.input_norm"), "norm-eps", eps=1e-2, reference_eps=1e-6),
         {"norm-eps": 1e-2}, "N01"),
    *in_precisions(
        deep("qkv-bias", "mlp", truth(out(f"{BLOCK}.attn.q_proj"), "missing-bias"), {"missing-bias": True}, "W06"),
        "fp32", "bf16",
    ),
    deep("attention-scale", "attention", truth(glue(f"{BLOCK}.attn.o_proj"), "attention-scale", scale=0.275),
         {"attention-scale": 0.275}, "A01"),
    deep("one-channel", "trap", truth(out(f"{BLOCK}.attn.o_proj"), "channel-scale", factor=1.05),
         {"o_proj": {"channel": (11, 1.05)}}, trap=True),
    deep("residual-normed", "mlp", truth(glue(f"{BLOCK}.post_norm"), "residual-source"), {"residual-source": True}),
    Case("llama/deep-weights-int8", "llama", "quantisation", truth(weight(f"{BLOCK}.mlp.down_proj"), "quantisation"),
         weights=(w.on_int8_grid(f"{BLOCK}.mlp.down_proj.weight"),), **COMMON),
    *in_precisions(deep("clean", "port", None, {}, what="twelve layers and a massive channel"), "fp32", "bf16",
                   "mixed"),
]  # fmt: skip
