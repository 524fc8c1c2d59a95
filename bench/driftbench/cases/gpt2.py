"""Bugs of GPT-2-like decoders: LayerNorm, fused projections, positions, padding, ALiBi."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812

from ..case import Case, Planted, glue, in_precisions, out, truth, weight
from ..faults import weights as w
from .making import Maker

make = Maker("gpt2")
MIXED, FIRST_MIXED = glue("h.1.attn.c_proj"), glue("h.0.attn.c_proj")
ALIBI = {"alibi": True}
FIRST = (glue("h.0.ln_1"), glue("h.0"))

CASES = [
    make.everywhere("eps-placement-all", "norm", truth(out("h.0.ln_1"), "norm-eps-placement"),
                    {"norm-eps-placement": True}, "N07"),
    make.at(1, "norm-eps", "norm", truth(out("h.1.ln_1"), "norm-eps", eps=1e-3, reference_eps=1e-5),
            {"norm-eps": 1e-3}, "N06"),
    make.everywhere("norm-eps-tiny-all", "norm", truth(out("h.0.ln_1"), "norm-eps", eps=1e-12, reference_eps=1e-5),
                    {"norm-eps": 1e-12}, "N04"),
    *in_precisions(
        make.at(1, "no-mean", "norm", truth(out("h.1.ln_1"), "rms-vs-layernorm"), {"rms-vs-layernorm": True}),
        "fp32", "bf16",
    ),
    make.at(1, "unbiased-variance", "norm", truth(out("h.1.ln_1"), ("scale", "unknown")),
            {"norm-unbiased": True}),
    make.at(2, "norm-over-sequence", "norm", truth(out("h.2.ln_1"), "norm-axis"), {"norm-axis": True}, "N17"),
    make.at(2, "norm-bias-dropped", "norm", truth(out("h.2.ln_1"), "missing-bias"), {"missing-bias": True}),
    *in_precisions(
        make.at(1, "qkv-order", "attention", truth(MIXED, "qkv-order"), {"qkv-order": (1, 0, 2)}),
        "fp32", "bf16",
    ),
    make.everywhere("qkv-order-all", "attention", truth(FIRST_MIXED, "qkv-order"), {"qkv-order": (2, 1, 0)}),
    make.at(1, "qkv-per-head", "attention", truth(MIXED, ("interleave", "qkv-order", "head-permutation", "axis-order")),
            {"qkv-per-head": True}, "R01"),
    make.at(1, "heads-reversed", "attention", truth(MIXED, ("head-permutation", "permutation")),
            {"heads-reversed": True}),
    make.at(1, "scale-missing", "attention", truth(MIXED, "attention-scale", scale=1.0), {"attention-scale": 1.0},
            "A06"),
    *in_precisions(
        make.at(2, "mask-diagonal", "attention", truth(glue("h.2.attn.c_proj"), "mask-off-by-one"),
                {"mask-off-by-one": 1}),
        "fp32", "mixed",
    ),
    make.at(1, "causal-ignored", "attention", truth(MIXED, "mask-missing"), {"mask-missing": True}),
    *in_precisions(
        make.everywhere("padding-ignored-all", "attention", truth(FIRST_MIXED, "mask-missing"),
                        {"padding-ignored": True}),
        "fp32", "bf16",
    ),
    make.everywhere("alibi-geometric-all", "attention", truth(FIRST_MIXED, "alibi-slope"), {"alibi-geometric": True},
                    "A23", config=ALIBI),
    make.at(1, "alibi-exponent", "attention", truth(MIXED, "alibi-slope"), {"alibi-exponent": True}, "A24",
            config=ALIBI),
    *in_precisions(
        make.everywhere("position-shift", "position", truth(glue("wpe"), "position-shift", shift=2),
                        {"position-shift": 2}),
        "fp32", "bf16",
    ),
    make.everywhere("left-padding", "position", truth(glue("wpe"), ("position-shift",)),
                    {"positions-ignore-padding": True}, "G01", "G03"),
    make.everywhere("positions-unused", "position", truth(FIRST, "missing-term"), {"positions-unused": True}),
    make.at(1, "gelu-exact", "mlp", truth(out("h.1.mlp.act"), "activation-variant"), {"activation": F.gelu}, "M01"),
    make.at(1, "gelu-relu", "mlp", truth(out("h.1.mlp.act"), "activation-variant"), {"activation": F.relu}),
    *in_precisions(
        make.at(1, "c-attn-bias", "mlp", truth(out("h.1.attn.c_attn"), "missing-bias"), {"bias-dropped": True}, "W06"),
        "fp32", "bf16", "mixed",
    ),
    make.at(2, "mlp-bias", "mlp", truth(out("h.2.mlp.c_proj"), "missing-bias"), {"mlp-bias-dropped": True}),
    make.at(1, "parallel-residual", "mlp", truth(glue("h.1.ln_2"), ("residual-source", "missing-term",
                                                                    "missing-residual")),
            {"parallel": True}),
    *in_precisions(
        make.at(1, "dropout-in-eval", "precision", truth(out("h.1.attn.drop"), "dropout-active"),
                {"dropout-active": True}, "P09"),
        "fp32", "bf16",
    ),
    make.loaded("conv1d-transpose", "weights", weight("h.1.attn.c_proj"), "transpose",
                w.transposed("h.1.attn.c_proj.weight"), ids=("W05",)),
    make.loaded("qkv-rows", "weights", weight("h.1.attn.c_attn"), "qkv-order",
                w.altered("h.1.attn.c_attn.weight", lambda x: x.roll(48, 0)),
                w.altered("h.1.attn.c_attn.bias", lambda x: x.roll(48, 0))),
    make.loaded("norm-not-loaded", "weights", weight("h.2.ln_1"), ("wrong-weight", "uninitialised"),
                w.altered("h.2.ln_1.weight", lambda x: x * 0 + 1)),
    make.loaded("bias-zero", "weights", weight("h.1.mlp.c_fc", "bias"), ("uninitialised", "missing-bias"),
                w.zeroed("h.1.mlp.c_fc.bias"), ids=("Q03",)),
    Case("gpt2/weights-untied-head", "gpt2", "weights", truth(weight("lm_head"), ("untied-head", "wrong-weight")),
         Planted({"untied-head": True}), weights=(w.fresh("lm_head.weight"),), catalogue=("W02", "W04")),
]  # fmt: skip
