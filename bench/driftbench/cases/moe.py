"""Bugs of mixtures of experts, of partial RoPE and of norms of queries and keys."""

from __future__ import annotations

from ..case import glue, in_precisions, out, truth, weight
from ..faults import weights as w
from .making import Maker

make = Maker("moe")
PLAIN = {"renormalise": False}
ROUTER, MIXTURE, EXPERTS = out("layers.1.mlp.router", "out.0"), out("layers.1.mlp"), out("layers.1.mlp.experts")
ROPE, CORE = out("layers.1.attn.rope", "out.0"), out("layers.1.attn.core")

CASES = [
    *in_precisions(
        make.at(1, "router-not-renormalised", "moe", truth(ROUTER, "router-renorm"), {"router-renorm": True}, "M08"),
        "fp32", "bf16", "mixed",
    ),
    make.at(1, "router-renormalised", "moe", truth(ROUTER, "router-renorm"), {"router-renorm": True}, "M07",
            config=PLAIN),
    make.everywhere("router-renormalised-all", "moe", truth(out("layers.0.mlp.router", "out.0"), "router-renorm"),
                    {"router-renorm": True}, "M07", config=PLAIN),
    make.at(1, "router-raw-logits", "moe", truth(ROUTER, ("skipped-op", "activation-variant", "router-renorm")),
            {"raw-logits": True}, "M09"),
    make.at(1, "router-sigmoid", "moe", truth(ROUTER, ("activation-variant", "router-renorm")), {"sigmoid": True}),
    make.at(1, "expert-shift", "moe", truth(EXPERTS, ("index-shift", "permutation", "wrong-weight")),
            {"expert-shift": True}, "M05"),
    make.at(1, "expert-weights-unused", "moe", truth(EXPERTS, ("skipped-op", "unknown", "router-renorm")),
            {"weights-unused": True}),
    make.at(1, "expert-capacity", "moe", truth(EXPERTS, ("missing-term", "unknown", "uninitialised")),
            {"empty-capacity": 6}, "P06"),
    *in_precisions(
        make.at(1, "shared-unused", "moe", truth(MIXTURE, "missing-term"), {"shared-unused": True}, "M12"),
        "fp32", "bf16",
    ),
    make.at(1, "shared-gate-unused", "moe", truth(MIXTURE, ("skipped-op", "missing-term")),
            {"shared-gate-unused": True}),
    make.at(1, "routed-scale", "moe", truth(MIXTURE, ("scale", "missing-term")), {"scaled": 2.5}, "M12"),
    *in_precisions(
        make.at(1, "packing-interleaved", "moe", truth(glue("layers.1.mlp.shared.down"), "interleave"),
                {"packing-interleaved": True}, "M06"),
        "fp32", "bf16",
    ),
    make.at(1, "halves-swapped", "moe",
            truth(glue("layers.1.mlp.shared.down"), ("swapped-operands", "swapped-halves")), {"halves-swapped": True},
            "M04"),
    make.at(1, "gate-clamped", "moe", truth(glue("layers.1.mlp.shared.down"), "clamp", limit=0.3), {"clamped": 0.3}),
    *in_precisions(
        make.at(1, "rope-interleave", "rope", truth(ROPE, "rope-interleave"), {"rope-interleave": True}, "R02", "R11"),
        "fp32", "bf16", "mixed",
    ),
    make.at(1, "rope-whole", "rope", truth(ROPE, "rope-partial"), {"rope-whole": True}, "R09", "R12"),
    make.everywhere("rope-whole-all", "rope", truth(out("layers.0.attn.rope", "out.0"), "rope-partial"),
                    {"rope-whole": True}, "R09"),
    make.at(1, "rope-exponent", "rope", truth(ROPE, ("rope-partial", "rope-theta", "frequency-table")),
            {"rope-exponent": True}, "R10"),
    *in_precisions(
        make.at(2, "rope-theta", "rope", truth(out("layers.2.attn.rope", "out.0"), "rope-theta", theta=1e6),
                {"rope-theta": 1e6}),
        "fp32", "bf16",
    ),
    make.at(1, "rope-query-shift", "position", truth(ROPE, "position-shift", shift=1), {"query-shift": 1}, "G02"),
    *in_precisions(
        make.at(1, "attention-scale", "attention", truth(CORE, "attention-scale", scale=8**-0.5),
                {"attention-scale": 8**-0.5}, "A01"),
        "fp32", "bf16",
    ),
    make.at(1, "mask-diagonal", "attention", truth(CORE, "mask-off-by-one"), {"mask-off-by-one": 1}),
    make.at(1, "attention-sink", "attention", truth(CORE, ("missing-term", "unknown")), {"sink": True}, "P05"),
    make.at(1, "head-norm-axis", "norm", truth(out("layers.1.attn.q_norm"), "norm-axis"), {"norm-all-heads": True},
            "A20", "A21"),
    make.at(1, "head-norms-unused", "norm",
            truth((glue("layers.1.attn.rope"), out("layers.1.attn.q_norm")), ("norm-missing", "skipped-op")),
            {"head-norms-unused": True}, "A22"),
    make.at(1, "head-norm-eps", "norm", truth(out("layers.1.attn.q_norm"), "norm-eps", eps=1e-3, reference_eps=1e-6),
            {"head-norm-eps": 1e-3}, "N04"),
    make.loaded("expert-swap", "weights", weight("layers.1.mlp.experts", "down"), ("permutation", "weight-swap"),
                w.permuted("layers.1.mlp.experts.down", [1, 0, 2, 3, 4, 5])),
    make.loaded("router-not-loaded", "weights", weight("layers.1.mlp.router.gate"), ("wrong-weight", "uninitialised"),
                w.fresh("layers.1.mlp.router.gate.weight"), ids=("T18",)),
    make.loaded("packed-rows", "weights", weight("layers.1.mlp.shared.gate_up"), "interleave",
                w.halves_interleaved("layers.1.mlp.shared.gate_up.weight", 1), ids=("M06",)),
    make.loaded("packed-halves", "weights", weight("layers.1.mlp.shared.gate_up"), "swapped-halves",
                w.altered("layers.1.mlp.shared.gate_up.weight", lambda x: x.roll(24, 0)), ids=("M05",)),
]  # fmt: skip
