"""Bugs of decoders with RoPE, grouped queries, RMSNorm and SwiGLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from ..case import Case, Planted, glue, in_precisions, out, truth, weight
from ..faults import weights as w
from .making import Maker

make = Maker("llama")

Q, K, O = "layers.1.attn.q_proj", "layers.1.attn.k_proj", "layers.1.attn.o_proj"  # noqa: E741
MIXED = glue(O)  # the attention's result, before its projection
FIRST_MIXED = glue("layers.0.attn.o_proj")
PRODUCT = glue("layers.1.mlp.down_proj")
AFTER_ATTENTION = glue("layers.1.post_norm")


def late(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Positions far into a long text."""
    tokens, positions = inputs
    return tokens, positions + 1853


SCALED = {"factor": 8.0}
BIASED = {"bias": True}
GRANITE = {"residual": 0.22, "logits": 0.125}

ROPE = [
    *in_precisions(
        make.at(1, "rope-interleave", "rope", truth(MIXED, "rope-interleave"), {"rope-interleave": True}, "R02", "R03"),
        "fp32", "bf16", "mixed",
    ),
    make.everywhere("rope-interleave-all", "rope", truth(FIRST_MIXED, "rope-interleave"), {"rope-interleave": True},
                    "R02"),
    make.everywhere(
        "rope-theta-all", "rope", truth(out("rotary", "out.0"), "rope-theta", theta=5e5), {"rope-theta": 5e5}, "R02"
    ),
    make.everywhere(
        "rope-scaling-all", "rope", truth(out("rotary", "out.0"), "rope-scaling"), {"rope-scaling": True}, "R05", "R07",
        config=SCALED, inputs=late,
    ),
    *in_precisions(
        make.everywhere(
            "rope-scaling-late-all", "rope", truth(out("rotary", "out.0"), "rope-scaling"), {"rope-scaling": True},
            "R08",
            config={"factor": 32.0}, inputs=late,
        ),
        "bf16", "mixed",
    ),
    make.everywhere(
        "rope-positions-bf16-all", "rope", truth(out("rotary", "out.0"), "rope-precision"),
        {"rope-precision": "positions"}, "R14", "R15", inputs=late,
    ),
    make.everywhere(
        "rope-frequencies-bf16-all", "rope", truth(out("rotary", "out.0"), "rope-precision"),
        {"rope-precision": "frequencies"}, "R16", "R17", inputs=late,
    ),
    make.at(1, "rope-half", "rope", truth(MIXED, "rope-partial"), {"rope-first-half": True}, "R13"),
    make.at(1, "rope-head-0", "rope", truth(MIXED, ("rope-partial", "skipped-op")), {"rope-head-0": True}, "R04"),
    make.at(1, "rope-amplitude", "rope", truth(MIXED, ("attention-scale", "scale")), {"rope-amplitude": 1.1386}, "A03"),
    make.at(1, "rope-query-shift", "position", truth(MIXED, "position-shift", shift=1), {"position-shift": True},
            "G02"),
]  # fmt: skip

ATTENTION = [
    *in_precisions(
        make.at(1,
            "attention-scale-width", "attention", truth(MIXED, "attention-scale", scale=64**-0.5),
            {"attention-scale": 64**-0.5}, "A05",
        ),
        "fp32", "mixed",
    ),
    make.everywhere(
        "attention-scale-inverse-all", "attention", truth(FIRST_MIXED, "attention-scale", scale=4.0),
        {"attention-scale": 4.0}, "A04", "A06",
    ),
    *in_precisions(
        make.at(1, "gqa-tile", "attention", truth(MIXED, "gqa-order"), {"gqa-order": True}, "A14", "A16"),
        "fp32", "bf16", "mixed",
    ),
    make.everywhere("gqa-tile-all", "attention", truth(FIRST_MIXED, "gqa-order"), {"gqa-order": True}, "A15"),
    make.at(1, "mask-diagonal", "attention", truth(MIXED, "mask-off-by-one"), {"mask-off-by-one": 1}, "A18"),
    make.at(1, "mask-missing", "attention", truth(MIXED, "mask-missing"), {"mask-missing": True}),
    *in_precisions(
        make.at(1, "head-merge", "attention", truth(MIXED, ("head-permutation", "axis-order")),
                {"head-permutation": True}),
        "fp32", "bf16",
    ),
]  # fmt: skip

NORMS = [
    make.at(1, "norm-eps", "norm", truth(out("layers.1.input_norm"), "norm-eps", eps=1e-5, reference_eps=1e-6),
        {"norm-eps": 1e-5}, "N01",
    ),
    make.everywhere(
        "norm-eps-all", "norm", truth(out("layers.0.input_norm"), "norm-eps", eps=1e-5, reference_eps=1e-6),
        {"norm-eps": 1e-5}, "N02", "N03", "N05",
    ),
    make.everywhere(
        "norm-eps-placement-all", "norm", truth(out("layers.0.input_norm"), "norm-eps-placement"),
        {"norm-eps-placement": True, "norm-eps": 1e-6}, "N07",
    ),
    *in_precisions(
        make.at(1,
            "norm-mean", "norm", truth(out("layers.1.input_norm"), "rms-vs-layernorm"), {"rms-vs-layernorm": True}
        ),
        "fp32", "bf16",
    ),
    make.at(1, "norm-skipped", "norm", truth(out("layers.1.input_norm"), ("norm-missing", "skipped-op")),
        {"norm-missing": True}, "A22",
    ),
    make.everywhere(
        "final-norm-skipped-all", "norm", truth(out("norm"), ("norm-missing", "skipped-op")),
        {"final-norm-missing": True}
    ),
    make.at(1, "norm-plus-one", "norm", truth(out("layers.1.input_norm"), "norm-plus-one"), {"norm-plus-one": True},
            "N11"),
    make.at(1, "norm-axis", "norm", truth(out("layers.1.input_norm"), "norm-axis"), {"norm-axis": True}, "A20"),
]  # fmt: skip

FEEDFORWARD = [
    *in_precisions(
        make.at(1, "silu-gelu", "mlp", truth(PRODUCT, "activation-variant"), {"activation": F.gelu}, "M02"),
        "fp32", "bf16",
    ),
    *in_precisions(
        make.at(1, "gate-up-operands", "mlp", truth(PRODUCT, "swapped-operands"), {"swapped-operands": True}, "M04"),
        "fp32", "mixed",
    ),
    make.everywhere(
        "gate-up-operands-all", "mlp", truth(glue("layers.0.mlp.down_proj"), "swapped-operands"),
        {"swapped-operands": True}, "M04",
    ),
    make.at(1, "clamp", "mlp", truth(PRODUCT, "clamp", limit=0.02), {"clamp": 0.02}),
    make.at(1, "residual-missing", "mlp", truth(AFTER_ATTENTION, "missing-residual"), {"missing-residual": True}
    ),
    *in_precisions(
        make.at(1,
            "residual-normed", "mlp", truth(AFTER_ATTENTION, "residual-source"), {"residual-source": True}
        ),
        "fp32", "bf16",
    ),
    make.at(1, "mlp-residual-missing", "mlp", truth(out("layers.1"), "missing-residual"), {"mlp-missing-residual": True}
    ),
    make.at(1, "residual-multiplier", "mlp", truth(AFTER_ATTENTION, ("scale", "missing-term")),
            {"residual-multiplier": True},
        "M13", config=GRANITE,
    ),
    make.everywhere(
        "logits-scaling-all", "mlp", truth(out(""), "scale", scale=8.0), {"logits-scale": True}, "M12", config=GRANITE
    ),
    *in_precisions(
        make.at(1, "qkv-bias-dropped", "mlp", truth(out(Q), "missing-bias"), {"missing-bias": True}, "W06",
                config=BIASED),
        "fp32", "bf16", "mixed",
    ),
    make.at(1, "bias-every-rank", "mlp", truth(out(O), "double-bias"), {"double-bias": 2}, "L10", config=BIASED),
    make.everywhere("bias-four-ranks-all", "mlp", truth(out("layers.0.attn.o_proj"), "double-bias"),
                    {"double-bias": 4}, "L10",
               config=BIASED),
    make.everywhere("token-off-by-one-all", "position", truth(out("embed_tokens"), ("index-shift", "permutation")),
               {"token-shift": 1}),
]  # fmt: skip

WEIGHTS = [
    make.loaded("rope-rows", "weights", weight(Q), ("interleave", "rope-interleave"),
           w.halves_interleaved(f"{Q}.weight", 4), w.halves_interleaved(f"{K}.weight", 2), ids=("R01",)),
    *in_precisions(make.loaded("transpose", "weights", weight(Q), "transpose", w.transposed(f"{Q}.weight"),
                               ids=("W05",)),
                   "fp32", "bf16", "mixed"),
    make.loaded("gate-up-swap", "weights", weight("layers.1.mlp.gate_proj"), "weight-swap",
           w.swapped("layers.1.mlp.gate_proj.weight", "layers.1.mlp.up_proj.weight"), ids=("M05",)),
    make.loaded("layer-swap", "weights", weight("layers.1.mlp.down_proj"), "weight-swap",
           w.swapped("layers.1.mlp.down_proj.weight", "layers.2.mlp.down_proj.weight")),
    make.loaded("head-not-loaded", "weights", weight("lm_head"), ("wrong-weight", "uninitialised"),
           w.fresh("lm_head.weight"), ids=("W11",)),
    make.loaded("head-tied-by-mistake", "weights", weight("lm_head"), "wrong-weight",
           w.copied("embed_tokens.weight", "lm_head.weight"), ids=("W03",)),
    Case("llama/weights-untied-head", "llama", "weights", truth(weight("lm_head"), ("untied-head", "wrong-weight")),
         Planted({"untied-head": True}), {"tied": True}, weights=(w.fresh("lm_head.weight"),), catalogue=("W01",
                                                                                                          "W02")),
    make.loaded("zeroed-shard", "weights", weight("layers.2.mlp.up_proj"), "uninitialised",
           w.zeroed("layers.2.mlp.up_proj.weight"), ids=("W09",)),
    make.loaded("denormal-shard", "weights", weight("layers.1.mlp.up_proj"), "uninitialised",
           w.denormal("layers.1.mlp.up_proj.weight"), ids=("W10",)),
    make.loaded("int8", "quantisation", weight("layers.1.mlp.gate_proj"), "quantisation",
           w.on_int8_grid("layers.1.mlp.gate_proj.weight")),
    make.loaded("int4", "quantisation", weight("layers.1.mlp.down_proj"), "quantisation",
           w.on_int4_grid("layers.1.mlp.down_proj.weight")),
    Case("llama/weights-zero-point", "llama", "quantisation",
         truth(weight("layers.1.mlp.down_proj"), "zero-point", shift=1),
         both_weights=(w.on_int4_grid("layers.1.mlp.down_proj.weight"),),
         weights=(w.on_int4_grid("layers.1.mlp.down_proj.weight", shift=1),), catalogue=("Q01",)),
    make.loaded("bf16-checkpoint", "precision", weight("layers.1.mlp.gate_proj"), "dtype-rounding",
           w.rounded("layers.1.mlp.gate_proj.weight")),
    make.loaded("heads-permuted", "weights", weight(Q), ("head-permutation", "permutation"),
           w.permuted(f"{Q}.weight", [*range(16, 32), *range(16), *range(32, 64)])),
    make.loaded("embedding-shift", "weights", weight("embed_tokens"), "index-shift",
           w.altered("embed_tokens.weight", lambda x: x.roll(1, 0))),
    make.loaded("norm-plus-one", "norm", weight("layers.0.input_norm"), ("norm-plus-one", "offset"),
           *(w.added(f"layers.{n}.{which}_norm.weight", 1.0) for n in range(3) for which in ("input", "post")),
           ids=("N09", "N10")),
    make.loaded("one-row-scaled", "weights", weight("layers.1.mlp.down_proj"), "channel-scale",
           w.scaled("layers.1.mlp.down_proj.weight", 1.5, 7)),
]  # fmt: skip

CASES = [*ROPE, *ATTENTION, *NORMS, *FEEDFORWARD, *WEIGHTS]
