"""Bugs of U-Nets and of diffusion models: skips, upsampling, GroupNorm, time embeddings, schedules."""

from __future__ import annotations

from ..case import Place, glue, in_precisions, out, truth, weight
from ..faults import weights as w
from .making import Maker

make = Maker("unet")
JOINED1, JOINED2 = (glue("up1"), glue("up1.norm")), (glue("up2"), glue("up2.norm"))
BILINEAR = {"mode": "bilinear"}

CASES = [
    make.everywhere("concat-order", "layout", truth(JOINED1, ("concat-order", "swapped-halves")),
                    {"concat-order-1": True}, "L09"),
    *in_precisions(
        make.everywhere("concat-order-deep", "layout", truth(JOINED2, ("concat-order", "swapped-halves")),
                        {"concat-order-2": True}, "L09"),
        "fp32", "bf16",
    ),
    make.everywhere("skip-source", "layout", truth(JOINED1, ("residual-source", "unknown")), {"skip-source": True}),
    make.everywhere("upsample-nearest", "layout", truth(out("up"), "interpolation"),
                    {"upsample": ("nearest", False)}, "L06", config=BILINEAR),
    *in_precisions(
        make.everywhere("upsample-corners", "layout", truth(out("up"), "interpolation"),
                        {"upsample": ("bilinear", True)}, "L05", config=BILINEAR),
        "fp32", "bf16", "mixed",
    ),
    make.everywhere("padding-asymmetric", "layout", truth(out("pool1"), "padding"), {"padding": (0, 1)}, "L02"),
    make.at(2, "groups", "norm", truth(out("middle.norm"), "norm-axis"), {"groups": 8}),
    make.at(3, "groups-interleaved", "norm", truth(out("up2.norm"), "norm-axis"), {"groups-interleaved": True}),
    make.at(2, "norm-eps", "norm", truth(out("middle.norm"), "norm-eps", eps=1e-3, reference_eps=1e-5),
            {"norm-eps": 1e-3}, "N15"),
    make.at(1, "relu", "mlp", truth(out("down2.act"), "activation-variant"), {"relu": True}),
    *in_precisions(
        make.at(2, "time-unused", "mlp", truth(out("middle"), "missing-term"), {"time-unused": True}),
        "fp32", "bf16",
    ),
    make.at(2, "time-doubled", "mlp", truth(out("middle"), ("double-bias", "missing-term")), {"time-doubled": True}),
    make.at(3, "residual-missing", "mlp", truth(out("up2"), "missing-residual"), {"missing-residual": True}),
    make.everywhere("frequency-table", "position", truth(out("time"), "frequency-table"), {"frequency-table": True}),
    make.everywhere("sine-first", "position", truth(out("time"), ("swapped-halves", "concat-order")),
                    {"sine-first": True}),
    make.everywhere("time-shift", "position", truth(glue("time"), ("position-shift", "offset")), {"time-shift": True},
                    "G07"),
    make.everywhere("schedule", "preprocessing", truth(Place("input", "input", "time"), "different-input"), {}, "G06",
                    candidate_inputs=lambda inputs: (inputs[0], 3 * inputs[1] / (1 + 2 * inputs[1] / 1000))),
    make.loaded("skip-kernel", "layout", weight("pool2"), ("conv-layout", "transpose", "axis-order"),
                w.altered("pool2.weight", lambda x: x.transpose(0, 1))),
    make.loaded("halves", "weights", weight("up1.conv"), ("swapped-halves", "permutation"),
                w.altered("up1.conv.weight", lambda x: x.roll(16, 1))),
]  # fmt: skip
