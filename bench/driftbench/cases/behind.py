"""Bugs behind legal rewrites and behind other names: the rewrite must be seen through, and the bug still found."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812

from ..case import Case, Planted, glue, in_precisions, out, truth, weight
from ..faults import rewrites
from ..faults import weights as w
from ..networks.bert import fused_names
from .benign import BERT_HEADS, HALVES, RENAMED_LLAMA

BASIS = {"rope-interleave": True}
FUSED = tuple(
    rewrites.fused(f"layer.{n}.attention.qkv", *(f"layer.{n}.attention.{part}" for part in ("query", "key", "value")))
    for n in range(3)
)


def case(name: str, network: str, family: str, said: object, planted: Planted, **more: object) -> Case:
    return Case(f"{network}/behind-{name}", network, family, said, planted, **more)  # type: ignore[arg-type]


CASES = [
    case("basis-activation", "llama", "mlp", truth(glue("layers.1.mlp.down_proj"), "activation-variant"),
         Planted({"activation": F.gelu}, {1}, BASIS), weights=HALVES),
    case("basis-scale", "llama", "attention", truth(glue("layers.2.attn.o_proj"), "attention-scale", scale=1.0),
         Planted({"attention-scale": 1.0}, {2}, BASIS), weights=HALVES),
    case("basis-transpose", "llama", "weights", truth(weight("layers.1.attn.o_proj"), "transpose"),
         Planted(rewrites=BASIS), weights=(*HALVES, w.transposed("layers.1.attn.o_proj.weight"))),
    case("folded-gain-residual", "llama", "mlp", truth(glue("layers.1.post_norm"), "missing-residual"),
         Planted({"missing-residual": True}, {1}),
         weights=(rewrites.folded_gain("layers.0.input_norm", *(f"layers.0.attn.{p}_proj" for p in "qkv")),)),
    case("migrated-gqa", "llama", "attention", truth(glue("layers.1.attn.o_proj"), "gqa-order"),
         Planted({"gqa-order": True}, {1}),
         weights=(rewrites.migrated_scale("layers.0.mlp.up_proj", "layers.0.mlp.down_proj"),)),
    case("folded-batchnorm-gates", "spotter", "recurrent", truth(out("gru", "out.0"), "gate-order"),
         Planted({"gate-order": True}, {2}),
         weights=(rewrites.folded_batchnorm("conv1", "bn1"), rewrites.folded_batchnorm("conv2", "bn2"))),
    case("permuted-heads-mask", "bert", "attention", truth(glue("layer.2.attention.dense"), "mask-missing"),
         Planted({"mask-missing": True}, {2}),
         weights=(rewrites.permuted_units(tuple(f"layer.1.attention.{p}" for p in ("query", "key", "value")),
                                          "layer.1.attention.dense", BERT_HEADS),)),
    case("fused-residual-source", "bert", "mlp", truth(glue("layer.1.norm"), "residual-source"),
         Planted({"residual-source": True}, {1}), candidate="fused", name_map=fused_names(), weights=FUSED),
    *in_precisions(
        case("names-gqa", "llama", "attention", truth(glue("layers.1.attn.o_proj"), "gqa-order"),
             Planted({"gqa-order": True}, {1}), rename=RENAMED_LLAMA),
        "fp32", "bf16",
    ),
    case("names-norm-eps", "llama", "norm", truth(out("layers.0.input_norm"), "norm-eps", eps=1e-5, reference_eps=1e-6),
         Planted({"norm-eps": 1e-5}), rename=RENAMED_LLAMA),
    case("names-unmapped", "llama", "mlp", truth(glue("layers.1.mlp.down_proj"), "swapped-operands"),
         Planted({"swapped-operands": True}, {1}), rename=RENAMED_LLAMA, unmapped=True),
    case("names-unmapped-router", "moe", "moe", truth(out("layers.1.mlp.router", "out.0"), "router-renorm"),
         Planted({"router-renorm": True}, {1}), rename={"layers": "h", "router": "topk", "embed": "wte"},
         unmapped=True),
    case("names-router", "moe", "moe", truth(out("layers.1.mlp.router", "out.0"), "router-renorm"),
         Planted({"router-renorm": True}, {1}), rename={"layers": "h", "router": "topk", "embed": "wte"}),
]  # fmt: skip
