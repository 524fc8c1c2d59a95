"""Bugs of networks that call one module several times."""

from __future__ import annotations

from ..case import glue, out, truth
from .making import Maker

make = Maker("shared")

CASES = [
    make.everywhere("call-missing", "memory", truth(glue("norm"), "call-count"), {"calls": 3}, "G08"),
    make.everywhere("call-extra", "memory", truth(glue("norm"), "call-count"), {"calls": 5}, "G08", "G05"),
    make.everywhere("stale-third-call", "memory", truth(out("block.act"), "stale-buffer", call=2), {"stale-call": 2},
                    "L11", "A26", trap=True),
    make.everywhere("norm-eps-all", "norm", truth(out("block.norm"), "norm-eps", eps=1e-3, reference_eps=1e-5),
                    {"norm-eps": 1e-3}, "N01"),
    make.same("clean", "port", what="one block called four times"),
]  # fmt: skip
