"""Bugs of int8 inference: zero points, rounding modes, saturation, scales."""

from __future__ import annotations

import torch

from ..case import out, truth, weight
from ..faults import weights as w
from .making import Maker

make = Maker("quantised")
QUANT1, QUANT2 = out("quant1"), out("quant2")


def whole_numbers(*names: str) -> tuple[object, ...]:
    """Weights of multiples of 1/32 make the inputs of the quantisation fall on ties."""
    return tuple(w.altered(name, lambda x: (x * 8).round() / 8) for name in names)


def on_a_grid(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return ((inputs[0] * 4).round() / 4,)


TIES = {"both_weights": whole_numbers("inlet.weight", "inlet.bias"), "inputs": on_a_grid}

CASES = [
    make.at(1, "ties-away", "quantisation", truth(QUANT1, "rounding-mode"), {"ties-away": True}, "Q05", trap=True,
            **TIES),
    make.at(1, "rounded-twice", "quantisation", truth(QUANT1, "rounding-mode"), {"rounded-twice": True}, "Q04", "Q06"),
    make.at(1, "truncated", "quantisation", truth(QUANT1, "rounding-mode"), {"truncated": True}, "Q06"),
    make.at(2, "zero-point", "quantisation", truth(QUANT2, ("zero-point", "offset")), {"zero": 4}, "Q01"),
    make.at(1, "linear-zero-point", "quantisation", truth(out("fc1"), ("zero-point", "missing-term", "offset")),
            {"linear-zero": 2}, "Q02"),
    make.at(2, "wrapped", "quantisation", truth(QUANT2, ("overflow", "clamp")), {"wrapped": True},
            both_weights=(w.scaled("fc1.scales", 6.0),)),
    make.at(2, "top-too-low", "quantisation", truth(QUANT2, "clamp", limit=63.0), {"top": 63},
            both_weights=(w.scaled("fc1.scales", 4.0),)),
    make.at(2, "scale", "quantisation", truth(QUANT2, "scale"), {"scale": 1 / 20}),
    make.at(1, "one-scale", "quantisation", truth(out("fc1"), "channel-scale"), {"one-scale": True}, "Q03"),
    make.loaded("levels-shift", "quantisation", weight("fc2", "levels"), ("zero-point", "offset"),
                w.altered("fc2.levels", lambda x: (x.int() - 1).clamp(-127, 127).to(torch.int8)), ids=("Q01",)),
    make.loaded("scales-shift", "quantisation", weight("fc1", "scales"), ("index-shift", "permutation"),
                w.altered("fc1.scales", lambda x: x.roll(1)), ids=("Q03",)),
    make.same("clean", "port", what="zero points taken out of the sums"),
]  # fmt: skip
