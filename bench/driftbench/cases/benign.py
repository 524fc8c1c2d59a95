"""No bugs: independent implementations, legal rewrites, other orders of sums, near-ties, ill-conditioned data."""

from __future__ import annotations

import torch

from ..case import in_precisions
from ..faults import losses, optimizers, rewrites, ties
from ..faults import weights as w
from ..networks.bert import fused_names
from ..networks.moe import names_without
from .making import Maker

llama, gemma, gpt2, vit, bert = Maker("llama"), Maker("gemma"), Maker("gpt2"), Maker("vit"), Maker("bert")
spotter, resnet, unet, tagger = Maker("spotter"), Maker("resnet"), Maker("unet"), Maker("tagger")
moe, mlp, shared = Maker("moe"), Maker("mlp"), Maker("shared")
TOO_SMALL = "the float64 difference is the eps of a second normalisation"
NOISE_DRIVEN = "a gradient that is zero in exact arithmetic moves its weight by Adam, in float64 too"

FOLDED = {"legal": "the weights were multiplied in float32", "bound": 1e-6}

PORTS = [
    case
    for make, precisions in (
        (llama, ("fp32", "bf16", "mixed", "precise", "double")), (gemma, ("fp32", "bf16", "mixed")),
        (gpt2, ("fp32", "bf16", "mixed", "precise")), (vit, ("fp32", "bf16", "mixed")),
        (bert, ("fp32", "bf16", "mixed")), (spotter, ("fp32", "bf16", "mixed")), (resnet, ("fp32", "bf16", "mixed")),
        (unet, ("fp32", "bf16", "mixed")), (tagger, ("fp32", "bf16", "mixed")), (moe, ("fp32", "double")),
        (mlp, ("fp32", "bf16")),
    )
    for case in in_precisions(make.same("clean", "port", "Z7", what="written independently"), *precisions)
]  # fmt: skip

LAYERS3 = range(3)
HALVES = tuple(
    w.halves_interleaved(f"layers.{n}.attn.{which}_proj.weight", heads) for n in LAYERS3 for which, heads in (("q", 4),
                                                                                                              ("k", 2))
)  # fmt: skip
RENAMED_LLAMA = {
    "layers": "blk", "attn": "attention", "q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo",
    "mlp": "feed_forward", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2", "input_norm": "attention_norm",
    "post_norm": "ffn_norm", "embed_tokens": "tok_embeddings", "lm_head": "output",
}  # fmt: skip
BERT_HEADS = [*range(16, 24), *range(8, 16), *range(32, 40), *range(8), *range(24, 32)]

REWRITES = [
    llama.same("rope-basis", "rewrite", "Z4", bugs={"rope-interleave": True}, weights=HALVES,
               what="interleaved rotation of weights in that order"),
    llama.same("rope-basis-training", "rewrite", "Z4", bugs={"rope-interleave": True}, weights=HALVES, training=True,
               optimizer=optimizers.sgd(), what="the same, with gradients and updates in that order",
               legal="weights and gradients are stored in another order", bound=2.0),
    llama.same("folded-gain", "rewrite",
               weights=tuple(change for n in LAYERS3 for change in (
                   rewrites.folded_gain(f"layers.{n}.input_norm", *(f"layers.{n}.attn.{p}_proj" for p in "qkv")),
                   rewrites.folded_gain(f"layers.{n}.post_norm",
                                        *(f"layers.{n}.mlp.{p}_proj" for p in ("gate", "up"))))),
               what="norm gains folded into the next matrices", **FOLDED),
    llama.same("migrated-scales", "rewrite",
               weights=tuple(rewrites.migrated_scale(f"layers.{n}.mlp.up_proj",
                                                     f"layers.{n}.mlp.down_proj") for n in LAYERS3),
               what="scales moved from down_proj to up_proj", **FOLDED),
    gpt2.same("permuted-units", "rewrite",
              weights=(rewrites.permuted_units(("h.1.mlp.c_fc",), "h.1.mlp.c_proj", [*range(100, 192), *range(100)]),),
              what="hidden units in another order"),
    bert.same("permuted-heads", "rewrite",
              weights=(rewrites.permuted_units(tuple(f"layer.1.attention.{p}" for p in ("query", "key", "value")),
                                               "layer.1.attention.dense", BERT_HEADS),),
              what="heads in another order"),
    bert.same("key-bias", "rewrite", weights=(rewrites.moved_key_bias("layer.1.attention.key"),),
              what="a key bias that the softmax does not see"),
    bert.same("fused-qkv", "rewrite", candidate="fused", name_map=fused_names(),
              weights=tuple(rewrites.fused(f"layer.{n}.attention.qkv",
                                           *(f"layer.{n}.attention.{p}" for p in ("query", "key", "value")))
                            for n in LAYERS3),
              what="queries, keys and values from one matrix under another name"),
    spotter.same("folded-batchnorm", "rewrite",
                 weights=(rewrites.folded_batchnorm("conv1", "bn1"), rewrites.folded_batchnorm("conv2", "bn2")),
                 what="batch norms folded into the convolutions", **FOLDED),
    mlp.same("transposed-storage", "rewrite", candidate="transposed",
             weights=tuple(w.transposed(f"{n}.weight") for n in ("fc1", "gate", "fc2", "fc3")),
             what="matrices stored as [in, out] under the same names"),
    llama.same("renamed", "rewrite", rename=RENAMED_LLAMA, what="other names, with a map"),
    llama.same("renamed-no-map", "rewrite", rename=RENAMED_LLAMA, unmapped=True, what="other names, without a map"),
    moe.same("renamed", "rewrite", rename={"layers": "h", "experts": "routed", "router": "topk", "embed": "wte"},
             what="other names, with a map"),
    moe.same("topk-then-softmax", "rewrite", "Z1", what="the softmax of the chosen is the renormalised one"),
    moe.same("norm-after-rope", "rewrite", "Z2", bugs={"norm-after-rope": True},
             both_weights=tuple(w.altered(f"layers.{n}.attn.{p}_norm.weight",
                                          torch.ones_like) for n in LAYERS3 for p in "qk"),
             name_map=names_without("q_norm", "k_norm", "rope"), what="a rotation keeps the rms"),
    llama.same("norm-twice", "rewrite", "Z3", bugs={"norm-twice": True}, what="RMSNorm twice", legal=TOO_SMALL,
               bound=1e-5,
               both_weights=(w.scaled("embed_tokens.weight", 50.0),)),
    mlp.same("bias-on-one-rank", "rewrite", "Z5", "Z11", candidate="split", what="the sum split, the bias added once"),
    gemma.same("gelu-name", "rewrite", "Z6", bugs={"called": "none"}, what="a GELU that says it is the other one"),
    gpt2.same("alibi", "rewrite", "Z9", config={"alibi": True}, what="ALiBi, head by head"),
    gpt2.same("alibi-absolute", "rewrite", "Z9", config={"alibi": True}, bugs={"alibi-absolute": True},
              what="ALiBi by the key's position: each row is free of a constant"),
    mlp.same("label-shift-in-loss", "rewrite", "Z8", training=True, candidate_target=lambda y: y.roll(1, 1),
             candidate_loss=lambda logits, y: losses.by_hand(logits, y.roll(-1, 1)),
             what="labels are shifted by the loss"),
]  # fmt: skip

SEEDS = [
    case
    for make in (llama, gemma, gpt2, vit, bert, spotter, resnet, unet, tagger)
    for case in in_precisions(make.same("clean-seed", "port", seed=7, what="other weights and inputs"), "fp32", "bf16")
]

ORDERS = [
    *in_precisions(mlp.same("one-ulp", "order", candidate="nudged", trap=True, what="every other result is one ulp up"),
                   "fp32", "bf16"),
    *in_precisions(mlp.same("split-sums", "order", "Z11", candidate="split", what="sums in four parts, backwards"),
                   "fp32", "bf16", "mixed"),
    *in_precisions(mlp.same("sample-by-sample", "order", "Z10", candidate="samples", what="another batch size"),
                   "fp32", "bf16"),
    *in_precisions(mlp.same("split-sums-trained", "order", "Z11", candidate="split", training=True,
                            optimizer=optimizers.adamw(), candidate_optimizer=optimizers.own_adamw(), steps=3,
                            what="three steps of AdamW"), "fp32", "bf16"),
]  # fmt: skip

HARD = [
    mlp.same("nearly-constant-rows", "ill-conditioned", both_weights=(w.added("fc1.bias", 300.0),),
             what="a norm over rows that hardly vary"),
    mlp.same("nearly-constant-rows-trained", "ill-conditioned", both_weights=(w.added("fc1.bias", 300.0),),
             training=True,
             optimizer=optimizers.sgd(), what="the same, trained"),
    mlp.same("huge-logits", "ill-conditioned", both_weights=(w.scaled("gate.weight", 100.0),),
             what="a softmax of huge logits"),
    vit.same("huge-scores", "ill-conditioned", both_weights=(w.scaled("blocks.1.attn.qkv.weight", 8.0, slice(0, 96)),),
             what="attention that nearly chooses"),
    mlp.same("cancelling-products", "ill-conditioned",
             both_weights=(rewrites.cancelling("embed.weight", "fc1.weight"),),
             what="products that nearly cancel"),
    llama.same("tiny-activations", "ill-conditioned", both_weights=(w.scaled("embed_tokens.weight", 1e-3),),
               what="rows of which eps is most"),
    llama.same("outlier-channel", "ill-conditioned", config={"bias": True},
               both_weights=(w.added("layers.1.attn.o_proj.bias", 0.0), w.scaled("layers.1.attn.o_proj.bias", 400.0,
                                                                                 7)),
               what="one channel a hundred times larger than the others"),
]  # fmt: skip

FLIPS = [
    mlp.same("relu-near-zero", "flip", candidate="split", training=True, prepare=ties.relu_at_zero,
             what="one element of each channel at zero"),
    mlp.same("relu-near-zero-handmade", "flip", training=True, prepare=ties.relu_at_zero, optimizer=optimizers.sgd(),
             what="the same, with backward passes by hand"),
    spotter.same("pool-near-tie", "flip", training=True, prepare=ties.equal_neighbours,
                 what="two neighbours of a maximum are equal"),
    moe.same("router-near-tie", "flip", prepare=ties.equal_experts, what="two experts are equally good for a token"),
    moe.same("router-near-tie-seed", "flip", prepare=ties.equal_experts, seed=3,
             what="two experts are equally good for a token"),
]  # fmt: skip

TRAINED = [
    llama.same("trained", "training", training=True, optimizer=optimizers.adamw(1e-3), steps=3,
               what="three steps of AdamW"),
    llama.same("trained-tied", "training", config={"tied": True}, training=True, optimizer=optimizers.adamw(1e-3),
               candidate_optimizer=optimizers.own_adamw(1e-3), what="a tied head"),
    *in_precisions(llama.same("trained-sgd", "training", training=True, optimizer=optimizers.sgd(0.05), what="SGD"),
                   "bf16", "mixed"),
    gpt2.same("trained-dropout", "training", training=True, train_mode=True, optimizer=optimizers.adamw(1e-3),
              what="dropout with one seed", legal=NOISE_DRIVEN, bound=3.0),
    bert.same("trained", "training", training=True, optimizer=optimizers.adamw(1e-3), legal=NOISE_DRIVEN, bound=3.0,
              what="key biases, whose gradients are zero but for rounding"),
    resnet.same("trained", "training", training=True, train_mode=True, optimizer=optimizers.sgd(0.05, 0.9), steps=2,
                what="batch statistics"),
    spotter.same("trained", "training", training=True, train_mode=True, optimizer=optimizers.sgd(0.05),
                 what="batch statistics and a GRU"),
    unet.same("trained", "training", training=True, optimizer=optimizers.adamw(1e-3), what="concatenated skips"),
    tagger.same("trained", "training", training=True, optimizer=optimizers.sgd(0.1, 0.9),
                candidate_optimizer=optimizers.own_sgd(0.1, 0.9), steps=2, what="a loop against the library's LSTM"),
    moe.same("trained", "training", training=True, optimizer=optimizers.adamw(1e-3), what="gathered experts"),
    mlp.same("trained-handmade", "training", training=True, optimizer=optimizers.adamw(),
             candidate_optimizer=optimizers.own_adamw(), steps=3, what="backward passes and AdamW by hand"),
    shared.same("trained", "training", training=True, optimizer=optimizers.sgd(), what="gradients of four calls, tied"),
    mlp.same("clipped", "training", training=True, optimizer=optimizers.Clipped(optimizers.sgd(), 0.1),
             candidate_optimizer=optimizers.Clipped(optimizers.own_sgd(), 0.1), what="clipped gradients"),
]  # fmt: skip

CASES = [*PORTS, *SEEDS, *REWRITES, *ORDERS, *HARD, *FLIPS, *TRAINED]
