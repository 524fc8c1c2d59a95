"""Bugs of recurrent networks."""

from __future__ import annotations

from ..case import in_precisions, out, truth, weight
from ..faults import weights as w
from .making import Maker

make = Maker("tagger")
LSTM = out("lstm", "out.0")
GATES = [*range(20), *range(40, 60), *range(20, 40), *range(60, 80)]

CASES = [
    *in_precisions(
        make.everywhere("gate-order", "recurrent", truth(LSTM, "gate-order"), {"gate-order": True}, "W07"),
        "fp32", "bf16", "mixed",
    ),
    make.everywhere("forget-bias", "recurrent", truth(LSTM, "gate-formula"), {"forget-bias": 1.0}),
    make.everywhere("tanh-missing", "recurrent", truth(LSTM, "gate-formula"), {"tanh-missing": True}),
    make.everywhere("recurrent-bias", "recurrent", truth(LSTM, ("missing-bias", "gate-formula")),
                    {"recurrent-bias-dropped": True}),
    make.everywhere("directions-swapped", "recurrent", truth(LSTM, ("swapped-halves", "concat-order")),
                    {"directions-swapped": True}),
    make.everywhere("backward-not-flipped", "recurrent", truth(LSTM, ("permutation", "index-shift")),
                    {"backward-order": True}),
    make.everywhere("backward-reads-forward", "recurrent", truth(LSTM, ("permutation", "unknown", "gate-formula")),
                    {"backward-forward": True}),
    make.everywhere("token-off-by-one", "position", truth(out("embed"), ("index-shift", "permutation")),
                    {"token-shift": 1}),
    make.loaded("gate-rows", "recurrent", weight("lstm", "weight_ih_l0"), "gate-order",
                *(w.permuted(f"lstm.{key}_l0{end}", GATES) for end in ("", "_reverse")
                  for key in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")), ids=("W07",)),
    make.loaded("directions", "recurrent", weight("lstm", "weight_ih_l0"), "weight-swap",
                *(w.swapped(f"lstm.{key}_l0", f"lstm.{key}_l0_reverse")
                  for key in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))),
    make.loaded("recurrent-transposed", "recurrent", weight("lstm", "weight_hh_l0"),
                ("transpose", "axis-order", "permutation"),
                w.altered("lstm.weight_hh_l0", lambda x: x.unflatten(0, (4, 20)).mT.reshape(80, 20)), ids=("W07",)),
]  # fmt: skip
