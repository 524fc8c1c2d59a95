"""Where tolerances and similarities are known to mislead; and bugs of precision and memory that fit nowhere else."""

from __future__ import annotations

import torch

from ..case import Place, glue, in_precisions, out, truth
from ..faults import weights as w
from .making import Maker

llama, resnet, mlp, bert = Maker("llama"), Maker("resnet"), Maker("mlp"), Maker("bert")
O_PROJ, DOWN = "layers.1.attn.o_proj", "layers.1.mlp.down_proj"


def massive(x: torch.Tensor) -> torch.Tensor:
    """A bias with one huge entry, as trained models have massive activations."""
    x = x.clone()
    x[7] = 60.0
    return x


OUTLIER = {"config": {"bias": True}, "both_weights": (w.altered(f"{O_PROJ}.bias", massive),), "trap": True}

CASES = [
    *in_precisions(
        llama.at(1, "outlier-channel", "trap", truth(out(O_PROJ), "channel-scale", factor=1.02),
                 {"o_proj": {"channel": (7, 1.02)}}, **OUTLIER),
        "fp32",
    ),
    llama.at(1, "quiet-channel-beside-outlier", "trap", truth(out(O_PROJ), "channel-scale", factor=3.0),
             {"o_proj": {"channel": (20, 3.0)}}, **OUTLIER),
    *in_precisions(
        llama.at(1, "uniform-gain", "trap", truth(out(DOWN), "scale", factor=152.0), {"down_proj": {"gain": 152.0}},
                 trap=True),
        "fp32", "bf16", "mixed",
    ),
    llama.everywhere("uniform-gain-all", "trap", truth(out("layers.0.mlp.down_proj"), "scale", factor=152.0),
                     {"down_proj": {"gain": 152.0}}, trap=True),
    *in_precisions(
        llama.everywhere("other-tokens", "preprocessing", truth(Place("input", "input", "tokens"), "different-input"),
                         {}, trap=True, candidate_inputs=lambda inputs: (inputs[0].roll(1, 0), inputs[1])),
        "fp32", "bf16",
    ),
    resnet.everywhere("one-sample-differs", "preprocessing", truth(Place("input", "input", "image"), "different-input"),
                      {}, trap=True,
                      candidate_inputs=lambda inputs: (torch.cat((inputs[0][:2], inputs[0][2:] * 1.01)),)),
    resnet.at(1, "nan-row", "trap", truth(glue("blocks.1.conv2"), "nan-origin"), {"nan-row": True}, "P05", "P08",
              trap=True),
    resnet.at(2, "fp16-overflow", "precision", truth(glue("blocks.2.conv2"), "overflow"),
              {"half-precision": torch.float16}, "P01", "P02", "P03",
              both_weights=(w.scaled("blocks.2.bn1.weight", 1e5),)),
    llama.at(1, "accumulator-bf16", "precision", truth(out(DOWN), ("accumulator-precision", "dtype-rounding")),
             {"down_proj": {"accumulator": torch.bfloat16}}, "N18"),
    llama.at(1, "accumulator-fp16", "precision", truth(out("layers.1.mlp.gate_proj"),
             ("accumulator-precision", "dtype-rounding")), {"gate_proj": {"accumulator": torch.float16}}, "N18"),
    llama.at(1, "matmul-bf16", "precision", truth(out(DOWN), ("dtype-rounding", "accumulator-precision")),
             {"down_proj": {"product": torch.bfloat16}}, "P04"),
    llama.everywhere("matmul-bf16-all", "precision",
                     truth(out("layers.0.attn.o_proj"), ("dtype-rounding", "accumulator-precision")),
                     {name: {"product": torch.bfloat16} for name in ("o_proj", "gate_proj", "down_proj")}, "P04"),
    llama.at(1, "unwritten-rows", "memory", truth(out(DOWN), ("nondeterministic", "uninitialised")),
             {"down_proj": {"unwritten": True}}, "P05", "P06", "A26"),
    llama.everywhere("reference-coarse", "precision", truth(out("norm"), ("reference-suspect", "dtype-rounding")), {},
                     "A19", config={"coarse": True}),
]  # fmt: skip
