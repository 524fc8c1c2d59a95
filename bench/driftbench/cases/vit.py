"""Bugs of vision transformers: patches, resized positions, class tokens, fused qkv; and of feeding images."""

from __future__ import annotations

from ..case import Place, glue, in_precisions, out, truth, weight
from ..faults import weights as w
from .making import Maker

make = Maker("vit")
MIXED = glue("blocks.1.attn.proj")
INPUT = Place("input", "input", "image")

CASES = [
    *in_precisions(
        make.everywhere("conv-flip", "layout", truth(out("patches.conv"), "conv-flip"), {"conv-flip": True}),
        "fp32", "mixed",
    ),
    make.everywhere("conv-transpose", "layout", truth(out("patches.conv"), ("conv-flip", "conv-layout")),
                    {"conv-transpose": True}, "L08"),
    make.everywhere("patch-layout", "layout", truth(out("patches.conv"), "conv-layout"), {"patch-layout": True}, "L01"),
    *in_precisions(
        make.everywhere("patch-order", "layout", truth(out("patches"), ("axis-order", "transpose", "permutation")),
                        {"patch-order": True}, "L01"),
        "fp32", "bf16",
    ),
    *in_precisions(
        make.everywhere("align-corners", "layout", truth(out("positions"), "interpolation"), {"align-corners": True},
                        "L05"),
        "fp32", "bf16", "mixed",
    ),
    make.everywhere("nearest", "layout", truth(out("positions"), "interpolation"), {"nearest": True}, "L06"),
    make.everywhere("class-last", "layout", truth(out("positions"), "concat-order"), {"class-last": True}, "L09"),
    make.everywhere("positions-shifted", "position", truth(out("positions"), ("position-shift", "index-shift")),
                    {"positions-shifted": True}),
    make.at(1, "feature-head", "attention", truth(MIXED, ("head-permutation", "axis-order", "interleave")),
            {"feature-head": True}),
    make.at(1, "query-key-swapped", "attention", truth(MIXED, ("qkv-order", "swapped-operands")),
            {"query-key-swapped": True}),
    make.at(1, "softmax-axis", "attention", truth(MIXED, ("norm-axis", "axis-order", "unknown")),
            {"softmax-axis": True}),
    make.at(2, "attention-scale", "attention", truth(glue("blocks.2.attn.proj"), "attention-scale", scale=48**-0.5),
            {"attention-scale": 48**-0.5}, "A05"),
    make.at(1, "gelu-quick", "mlp", truth(out("blocks.1.mlp.1"), "activation-variant"), {"gelu-quick": True}, "M03"),
    make.at(1, "residual-missing", "mlp", truth(glue("blocks.1.norm2"), "missing-residual"),
            {"missing-residual": True}),
    *in_precisions(
        make.at(1, "layerscale-missing", "mlp", truth(out("blocks.1"), ("channel-scale", "skipped-op", "missing-term")),
                {"layerscale-missing": True}),
        "fp32", "bf16",
    ),
    make.at(1, "norm-eps", "norm", truth(out("blocks.1.norm1"), "norm-eps", eps=1e-3, reference_eps=1e-6),
            {"norm-eps": 1e-3}, "N15"),
    make.everywhere("mean-pooled", "position", truth(glue("head"), ("unknown", "pool-mode")), {"mean-pooled": True}),
    make.loaded("patch-kernel", "layout", weight("patches.conv"), ("conv-flip", "conv-layout", "transpose",
                                                                   "axis-order"),
                w.transposed("patches.conv.weight"), ids=("L08",)),
    make.loaded("qkv-feature-head", "weights", weight("blocks.1.attn.qkv"),
                ("head-permutation", "interleave", "axis-order", "permutation"),
                w.altered("blocks.1.attn.qkv.weight",
                          lambda x: x.unflatten(0, (3, 4, 12)).transpose(1, 2).reshape(x.shape))),
    make.loaded("positions-zero", "weights", weight("positions", "pos_embed"), "uninitialised",
                w.zeroed("positions.pos_embed"), ids=("W09",)),
    make.everywhere("channels-bgr", "preprocessing", truth(INPUT, "different-input"), {}, "G04",
                    candidate_inputs=lambda inputs: (inputs[0].flip(1),)),
    make.everywhere("not-normalised", "preprocessing", truth(INPUT, "different-input"), {}, "G04",
                    candidate_inputs=lambda inputs: (inputs[0] * 0.5 + 0.5,)),
    make.everywhere("rows-columns", "preprocessing", truth(INPUT, "different-input"), {}, "L01",
                    candidate_inputs=lambda inputs: (inputs[0].transpose(2, 3).contiguous(),)),
    make.everywhere("one-pixel-off", "preprocessing", truth(INPUT, "different-input"), {}, "L06",
                    candidate_inputs=lambda inputs: (inputs[0].roll(1, 3),)),
]  # fmt: skip
