"""Bugs of convolutional networks with residuals."""

from __future__ import annotations

import torch

from ..case import Place, glue, in_precisions, out, truth, weight
from ..faults import weights as w
from .making import Maker

make = Maker("resnet")

CASES = [
    make.at(1, "padding-same", "layout", truth(out("blocks.1.conv1"), "padding"), {"padding": (0, 1)}, "L02"),
    *in_precisions(
        make.at(2, "padding-before", "layout", truth(out("blocks.2.conv1"), "padding"), {"padding": (0, 2)}, "L02"),
        "fp32", "mixed",
    ),
    make.at(0, "padding-replicate", "layout", truth(out("blocks.0.conv1"), "padding"), {"padding-mode": "replicate"}),
    make.everywhere("stem-flip", "layout", truth(out("stem"), "conv-flip"), {"stem-flip": True}),
    make.at(1, "conv-flip", "layout", truth(out("blocks.1.conv1"), "conv-flip"), {"conv-flip": True}),
    *in_precisions(
        make.everywhere("count-pad", "layout", truth(out("avg"), "pool-count-pad"), {"count-pad": True}, "L04"),
        "fp32", "bf16",
    ),
    make.everywhere("pool-mean", "layout", truth(out("pool"), "pool-mode"), {"pool-mean": True}),
    make.everywhere("flatten-nhwc", "layout", truth(out("flatten"), ("axis-order", "conv-layout", "transpose")),
                    {"flatten-order": True}, "L01"),
    make.everywhere("relu-skipped", "mlp", truth(glue("pool"), ("skipped-op", "activation-variant")),
                    {"relu-skipped": True}),
    *in_precisions(
        make.at(1, "residual-missing", "mlp", truth(glue("blocks.1.relu2"), "missing-residual"),
                {"missing-residual": True}),
        "fp32", "bf16",
    ),
    make.at(1, "relu-before-sum", "mlp",
            truth(glue("blocks.1.relu2"), ("op-order", "missing-term", "residual-source")), {"relu-before-sum": True}),
    make.at(1, "bn-eps", "norm", truth(out("blocks.1.bn1"), "norm-eps", eps=1e-3, reference_eps=1e-5),
            {"bn-eps": 1e-3}, "N15"),
    make.everywhere("bn-eps-all", "norm", truth(out("blocks.0.bn1"), "norm-eps", eps=1e-3, reference_eps=1e-5),
                    {"bn-eps": 1e-3, "second-eps": 1e-3}, "N15"),
    make.at(1, "bn-batch-statistics", "norm", truth(out("blocks.1.bn1"), "batchnorm-mode"),
            {"bn-batch-statistics": True}),
    make.at(1, "relu-leaky", "mlp", truth(out("blocks.1.relu1"), "activation-variant"), {"leaky": 0.1}),
    make.at(1, "bf16-activations", "precision", truth(glue("blocks.1.conv2"), "dtype-rounding"),
            {"half-precision": torch.bfloat16}, "P04"),
    make.at(2, "fp16-activations", "precision", truth(glue("blocks.2.conv2"), "dtype-rounding"),
            {"half-precision": torch.float16}, "P04"),
    make.loaded("kernel-transposed", "layout", weight("blocks.0.conv2"), ("conv-layout", "transpose", "axis-order"),
                w.altered("blocks.0.conv2.weight", lambda x: x.transpose(0, 1))),
    make.loaded("kernel-spatial", "layout", weight("blocks.1.conv2"), ("conv-flip", "transpose"),
                w.transposed("blocks.1.conv2.weight")),
    make.loaded("one-filter", "weights", weight("blocks.1.conv1"), "channel-scale",
                w.scaled("blocks.1.conv1.weight", 0.5, 3)),
    make.loaded("bn-swap", "weights", weight("blocks.1.bn1"), "weight-swap",
                w.swapped("blocks.1.bn1.weight", "blocks.1.bn2.weight")),
    make.loaded("fp16-kernel", "precision", weight("blocks.2.conv1"), "dtype-rounding",
                w.rounded("blocks.2.conv1.weight", torch.float16)),
    make.everywhere("image-flipped", "preprocessing", truth(Place("input", "input", "image"), "different-input"), {},
                    candidate_inputs=lambda inputs: (inputs[0].flip(3),)),
]  # fmt: skip
