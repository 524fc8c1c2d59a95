"""The thirty bugs of the package's C port, and the port without them. Traces only."""

from __future__ import annotations

from ..case import Case, Place, Planted, Truth

# bug: (family, step, phase, name, port, labels)
BUGS: dict[str, tuple[str, int, str, str, str, tuple[str, ...]]] = {
    "clip-off-by-one": ("preprocessing", 0, "input", "input", "audio", ("different-input",)),
    "weight-layout": ("layout", 0, "weight", "conv2", "weight", ("conv-layout", "axis-order", "transpose")),
    "avgpool-divisor": ("layout", 0, "fwd", "avgpool", "out", ("scale", "pool-count-pad")),
    "conv-flip": ("layout", 0, "fwd", "conv1", "out", ("conv-flip",)),
    "conv-pad": ("layout", 0, "fwd", "conv1", "out", ("padding",)),
    "ln-eps": ("norm", 0, "fwd", "ln1", "out", ("norm-eps",)),
    "ln-variance": ("norm", 0, "fwd", "ln1", "out", ("scale", "unknown")),
    "maxpool-window": ("layout", 0, "fwd", "pool1", "out", ("pool-mode", "padding", "unknown")),
    "gap-divisor": ("layout", 0, "fwd", "gap", "out", ("scale", "pool-count-pad")),
    "softmax-base": ("attention", 0, "fwd", "softmax", "out", ("attention-scale", "activation-variant")),
    "label-off-by-one": ("loss", 0, "loss", "loss", "out", ("label-shift",)),
    "loss-grad": ("loss", 0, "lossgrad", "loss", "out", ("gradient-formula", "missing-term")),
    "gap-grad": ("gradient", 0, "agrad", "pool3", "out", ("scale", "gradient-formula", "gradient-scale")),
    "maxpool-grad-first": ("gradient", 0, "agrad", "relu3", "out", ("gradient-formula",)),
    "maxpool-tie": ("gradient", 0, "agrad", "relu3", "out", ("gradient-formula",)),
    "stale-buffer": ("precision", 0, "agrad", "relu3", "out", ("stale-buffer", "gradient-formula")),
    "relu-mask": ("gradient", 0, "agrad", "ln3", "out", ("gradient-formula",)),
    "ln-grad-mean": ("gradient", 0, "agrad", "conv3", "out", ("gradient-formula",)),
    "ln-grad-gamma": ("gradient", 0, "agrad", "conv3", "out", ("gradient-formula",)),
    "conv-grad-border": ("gradient", 0, "agrad", "pool2", "out", ("gradient-formula",)),
    "conv-grad-weight": ("gradient", 0, "grad", "conv3", "weight", ("gradient-formula", "index-shift")),
    "linear-grad": ("gradient", 0, "grad", "fc", "weight", ("transpose", "axis-order", "gradient-formula")),
    "bias-grad": ("gradient", 0, "grad", "conv3", "bias", ("gradient-formula",)),
    "gamma-grad": ("gradient", 0, "grad", "ln3", "weight", ("gradient-formula",)),
    "missing-mean-scale": ("gradient", 0, "grad_scaled", "fc", "weight", ("reduction-scale", "gradient-scale",
                                                                          "scale")),
    "momentum-sign": ("optimizer", 0, "weight_after", "conv1", "weight", ("optimizer-momentum", "scale")),
    "dampening": ("optimizer", 0, "weight_after", "conv1", "weight", ("optimizer-momentum", "scale")),
    "rate-twice": ("optimizer", 0, "weight_after", "conv1", "weight", ("optimizer-lr", "scale")),
    "no-momentum": ("optimizer", 1, "weight_after", "conv1", "weight", ("optimizer-momentum",)),
    "grad-not-zeroed": ("gradient", 1, "grad", "fc", "weight", ("gradient-formula", "missing-term", "gradient-scale")),
}  # fmt: skip

CASES = [
    *(
        Case(f"c-port/{bug}", "c-port", family, Truth((Place(phase, name, port),), labels, {}, step),
             Planted({bug: True}))
        for bug, (family, step, phase, name, port, labels) in BUGS.items()
    ),
    *(
        Case(f"c-port/clean-{seed}", "c-port", "port", None, seed=seed, what="another language, sample after sample")
        for seed in range(3)
    ),
    Case("c-port/clean-three-steps", "c-port", "port", None, steps=3, what="three steps of SGD with momentum"),
]  # fmt: skip
