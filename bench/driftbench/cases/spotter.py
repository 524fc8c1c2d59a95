"""Bugs of keyword spotters: padding, batch norm, pools, flattening, GRU cells, mel frontends."""

from __future__ import annotations

from ..case import Place, in_precisions, out, truth, weight
from ..faults import weights as w
from .making import Maker

make = Maker("spotter")
INPUT = Place("input", "input", "mel")
GRU = out("gru", "out.0")

CASES = [
    *in_precisions(
        make.at(0, "padding-asymmetric", "layout", truth(out("conv1"), "padding"), {"padding": (1, 3)}, "L02"),
        "fp32", "bf16",
    ),
    make.at(1, "padding-reflect", "layout", truth(out("conv2"), "padding"), {"padding-mode": "reflect"}, "G04"),
    make.at(1, "conv-flip", "layout", truth(out("conv2"), "conv-flip"), {"conv-flip": True}),
    make.at(1, "conv-bias", "layout", truth(out("conv2"), "missing-bias"), {"bias-dropped": True}),
    *in_precisions(
        make.at(1, "bn-eps", "norm", truth(out("bn2"), "norm-eps", eps=1e-3, reference_eps=1e-5), {"bn-eps": 1e-3},
                "N15"),
        "fp32",
    ),
    make.at(0, "bn-eps-large", "norm", truth(out("bn1"), "norm-eps", eps=1e-2, reference_eps=1e-5), {"bn-eps": 1e-2}),
    make.at(1, "bn-eps-placement", "norm", truth(out("bn2"), "norm-eps-placement"),
            {"bn-eps-placement": True}, "N07", both_weights=(w.scaled("bn2.running_var", 1e-3),)),
    *in_precisions(
        make.at(1, "bn-batch-statistics", "norm", truth(out("bn2"), "batchnorm-mode"), {"bn-batch-statistics": True}),
        "fp32", "bf16", "mixed",
    ),
    make.everywhere("bn-batch-statistics-all", "norm", truth(out("bn1"), "batchnorm-mode"),
                    {"bn-batch-statistics": True}),
    make.at(1, "relu-leaky", "mlp", truth(out("relu2"), "activation-variant"), {"leaky": 0.01}),
    make.at(0, "relu-six", "mlp", truth(out("relu1"), ("clamp", "activation-variant"), limit=1.0), {"relu-cap": 1.0}),
    make.at(0, "pool-mean", "layout", truth(out("pool1"), "pool-mode"), {"pool-mean": True}),
    make.at(0, "pool-offset", "layout", truth(out("pool1"), ("padding", "index-shift", "pool-mode", "unknown")),
            {"pool-offset": True}, "L03"),
    make.at(1, "pool-count-pad", "layout", truth(out("pool2"), "pool-count-pad"), {"count-pad": True}, "L03", "L04"),
    *in_precisions(
        make.at(2, "flatten-order", "layout", truth(out("flatten"), ("axis-order", "conv-layout", "transpose")),
                {"flatten-order": True}, "L01"),
        "fp32", "bf16",
    ),
    *in_precisions(
        make.at(2, "gate-order", "recurrent", truth(GRU, "gate-order"), {"gate-order": True}, "W07"),
        "fp32", "bf16",
    ),
    make.at(2, "reset-before", "recurrent", truth(GRU, "gate-formula"), {"reset-before": True}, "W08"),
    make.at(2, "update-inverted", "recurrent", truth(GRU, "gate-formula"), {"update-inverted": True}),
    make.at(2, "gru-reversed", "recurrent", truth(GRU, ("permutation", "index-shift")), {"gru-reversed": True}),
    make.loaded("gate-rows", "recurrent", weight("gru", "weight_ih_l0"), "gate-order",
                *(w.permuted(f"gru.{key}_l0", [*range(20, 40), *range(20), *range(40, 60)])
                  for key in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")), ids=("W07",)),
    make.loaded("conv-kernel", "layout", weight("conv2"), "conv-flip", w.altered("conv2.weight", lambda x: x.flip(2))),
    make.loaded("bn-statistics", "weights", weight("bn2", "running_var"), ("wrong-weight", "uninitialised"),
                w.altered("bn2.running_var", lambda x: x * 0 + 1)),
    make.loaded("bn-gain-bias", "weights", weight("bn1"), "weight-swap", w.swapped("bn1.weight", "bn1.bias")),
    make.loaded("int8", "quantisation", weight("conv2"), "quantisation", w.on_int8_grid("conv2.weight")),
    make.everywhere("mel-log-floor", "preprocessing", truth(INPUT, "different-input"), {}, "G04",
                    candidate_inputs=lambda inputs: (inputs[0].clamp(min=-1.5),)),
    make.everywhere("mel-band-scale", "preprocessing", truth(INPUT, "different-input"), {}, "G04",
                    candidate_inputs=lambda inputs: (inputs[0] + 0.1,)),
]  # fmt: skip
