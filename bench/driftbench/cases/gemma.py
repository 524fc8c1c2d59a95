"""Bugs of Gemma-like decoders."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812

from ..case import glue, in_precisions, out, truth, weight
from ..faults import weights as w
from .making import Maker

make = Maker("gemma")
MIXED = glue("layers.2.attn.o_proj")
FIRST = (glue("layers.0.input_norm"), glue("layers.0"))

CASES = [
    *in_precisions(
        make.at(2, "plus-one-missing", "norm", truth(out("layers.2.input_norm"), "norm-plus-one"),
                {"norm-plus-one": True}, "N08", "N11"),
        "fp32", "bf16", "mixed",
    ),
    make.everywhere("plus-one-missing-all", "norm", truth(out("layers.0.input_norm"), "norm-plus-one"),
                    {"norm-plus-one": True}, "N08"),
    make.everywhere("final-plus-one", "norm", truth(out("norm"), "norm-plus-one"), {"final-plus-one": True}, "N12"),
    make.at(1, "norm-eps", "norm", truth(out("layers.1.input_norm"), "norm-eps", eps=1e-3, reference_eps=1e-6),
            {"norm-eps": 1e-3}, "N05"),
    make.at(2, "post-norm-skipped", "norm", truth(out("layers.2.post_attn_norm"), ("norm-missing", "skipped-op")),
            {"norm-missing": True}, "A22"),
    make.at(2, "norm-after-sum", "norm",
            truth((glue("layers.2.post_attn_norm"),), ("op-order", "missing-term", "residual-source")),
            {"op-order": True}),
    *in_precisions(
        make.at(2, "softcap-dropped", "attention", truth(MIXED, "softcap"), {"softcap": True}, "A07", "A08", "A09"),
        "fp32", "bf16",
    ),
    make.everywhere("softcap-dropped-all", "attention", truth(glue("layers.0.attn.o_proj"), "softcap"),
                    {"softcap": True}, "A07"),
    make.at(1, "softcap-value", "attention", truth(glue("layers.1.attn.o_proj"), "softcap"), {"softcap-value": 8.0}),
    *in_precisions(
        make.everywhere("logit-softcap-dropped", "attention", truth(out(""), "softcap", cap=3.0), {"logit-cap": True},
                        "A09"),
        "fp32", "mixed",
    ),
    *in_precisions(
        make.at(2, "window-wide", "attention", truth(MIXED, "window-off-by-one", window=6), {"window-off-by-one": 6},
                "A10", "A11", "A12"),
        "fp32", "bf16", "mixed",
    ),
    make.everywhere("window-narrow-all", "attention",
                    truth(glue("layers.0.attn.o_proj"), "window-off-by-one", window=4), {"window-off-by-one": 4},
                    "A13"),
    make.at(2, "window-ignored", "attention", truth(MIXED, "mask-missing"), {"window-missing": True}, "A12"),
    make.at(2, "attention-scale-head", "attention", truth(MIXED, "attention-scale", scale=12**-0.5),
            {"attention-scale": 12**-0.5}, "A02"),
    make.at(1, "rope-theta", "rope", truth(glue("layers.1.attn.o_proj"), "rope-theta", theta=1e6),
            {"rope-theta": 1e6}, "R10"),
    make.at(2, "gelu-exact", "mlp", truth(out("layers.2.mlp.act"), "activation-variant"), {"activation": F.gelu},
            "M01"),
    *in_precisions(
        make.at(2, "gelu-silu", "mlp", truth(out("layers.2.mlp.act"), "activation-variant"), {"activation": F.silu},
                "M02"),
        "fp32", "bf16", "mixed",
    ),
    make.at(1, "gelu-quick", "mlp", truth(out("layers.1.mlp.act"), "activation-variant"),
            {"activation": lambda x: x * (1.702 * x).sigmoid()}, "M03"),
    make.everywhere("gelu-constant-all", "mlp", truth(out("layers.0.mlp.act"), "activation-variant"),
                    {"gelu-constant": 0.0356774}, "M03"),
    make.at(3, "up-ignored", "mlp", truth(glue("layers.3.mlp.down_proj"), ("missing-term", "skipped-op")),
            {"missing-factor": True}),
    *in_precisions(
        make.everywhere("embedding-scale-missing", "mlp", truth(FIRST, "scale", scale=48**-0.5),
                        {"embedding-scale": 1.0}, "M12", "N16"),
        "fp32", "bf16", "mixed",
    ),
    make.everywhere("embedding-scale-rounded", "mlp", truth(FIRST, ("scale", "dtype-rounding"), scale=6.9375 / 48**0.5),
                    {"embedding-scale": 6.9375}, "N16"),
    make.loaded("norm-twice", "norm", weight("layers.1.input_norm"), ("norm-plus-one", "offset"),
                w.added("layers.1.input_norm.weight", 1.0), ids=("N09",)),
    make.loaded("row-shift", "weights", weight("embed_tokens"), "index-shift",
                w.altered("embed_tokens.weight", lambda x: x.roll(-1, 0)),
                w.altered("lm_head.weight", lambda x: x.roll(-1, 0))),
]  # fmt: skip
