"""Bugs of encoders with padding masks and norms behind the sums."""

from __future__ import annotations

from ..case import Place, glue, in_precisions, out, truth, weight
from ..faults import weights as w
from .making import Maker

make = Maker("bert")
MIXED = glue("layer.1.attention.dense")

CASES = [
    *in_precisions(
        make.at(1, "mask-missing", "attention", truth(MIXED, "mask-missing"), {"mask-missing": True}),
        "fp32", "bf16", "mixed",
    ),
    make.everywhere("mask-missing-all", "attention", truth(glue("layer.0.attention.dense"), "mask-missing"),
                    {"mask-missing": True}),
    make.at(1, "mask-small", "attention", truth(MIXED, ("mask-missing", "unknown")), {"mask-value": 2.0}),
    make.at(1, "mask-of-queries", "attention", truth(MIXED, ("mask-missing", "axis-order")), {"mask-queries": True}),
    make.at(2, "attention-divisor", "attention",
            truth(glue("layer.2.attention.dense"), "attention-scale", scale=40**-0.5),
            {"attention-divisor": 40**0.5}, "A05"),
    make.at(1, "head-merge", "attention", truth(MIXED, ("head-permutation", "axis-order")), {"merge": True}, "A17"),
    make.everywhere("types-unused", "position", truth(glue("embeddings.norm"), "missing-term"), {"types-unused": True}),
    make.everywhere("position-shift", "position", truth(glue("embeddings.position"), "position-shift", shift=2),
                    {"position-shift": 2}, "G01"),
    make.everywhere("embedding-eps", "norm", truth(out("embeddings.norm"), "norm-eps", eps=1e-3, reference_eps=1e-12),
                    {"embedding-eps": 1e-3}, "N04"),
    make.at(1, "norm-eps", "norm",
            truth(out("layer.1.attention.norm"), "norm-eps", eps=1e-3, reference_eps=1e-12), {"norm-eps": 1e-3}, "N06"),
    make.at(1, "no-mean", "norm", truth(out("layer.1.attention.norm"), "rms-vs-layernorm"), {"rms-vs-layernorm": True}),
    make.at(1, "gelu-tanh", "mlp", truth(out("layer.1.act"), "activation-variant"), {"approximate": "tanh"}, "M01"),
    make.at(1, "residual-missing", "mlp", truth(glue("layer.1.attention.norm"), "missing-residual"),
            {"missing-residual": True}),
    *in_precisions(
        make.at(1, "residual-source", "mlp", truth(glue("layer.1.norm"), "residual-source"), {"residual-source": True}),
        "fp32", "bf16",
    ),
    make.everywhere("tanh-missing", "mlp", truth(out("tanh"), ("skipped-op", "activation-variant")),
                    {"tanh-missing": True}),
    make.everywhere("pooled-last", "position", truth(glue("pooler"), ("index-shift", "unknown", "permutation")),
                    {"pooled-token": -1}),
    make.loaded("query-key", "weights", weight("layer.1.attention.query"), "weight-swap",
                w.swapped("layer.1.attention.query.weight", "layer.1.attention.key.weight"),
                w.swapped("layer.1.attention.query.bias", "layer.1.attention.key.bias")),
    make.loaded("value-transposed", "weights", weight("layer.1.attention.value"), "transpose",
                w.transposed("layer.1.attention.value.weight"), ids=("W05",)),
    make.loaded("previous-layer", "weights", weight("layer.2.intermediate"), "wrong-weight",
                w.copied("layer.1.intermediate.weight", "layer.2.intermediate.weight")),
    make.everywhere("token-ids", "preprocessing", truth(Place("input", "input", "tokens"), "different-input"), {},
                    candidate_inputs=lambda inputs: (inputs[0].flip(1), *inputs[1:])),
    make.everywhere("segments-missing", "preprocessing", truth(Place("input", "input", "types"), "different-input"), {},
                    candidate_inputs=lambda inputs: (inputs[0], inputs[1] * 0, inputs[2])),
]  # fmt: skip
