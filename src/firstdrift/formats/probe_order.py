"""The forward order of probes that nobody stated, read from their names.

Trailing numbers group layers, the usual order of operations holds inside a group, what feeds a network stands
before the groups and what ends one behind them. It is a guess, and whoever uses it says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_FIRST = ("input", "prep", "stem", "embed", "wte", "wpe", "tok", "pos")
_LAST = ("adapt", "global", "gap", "flatten", "view", "reshape", "final", "norm_f", "ln_f", "linear", "fc", "dense",
         "classifier", "head", "proj_out", "output", "out", "logit", "softmax", "log_softmax", "sigmoid", "prob",
         "loss")  # fmt: skip
_INSIDE = ("q", "k", "v", "attn", "conv", "dw", "pw", "depthwise", "pointwise", "linear", "fc", "dense", "proj",
           "bn", "ln", "gn", "norm", "batchnorm", "layernorm", "relu", "gelu", "silu", "tanh", "act", "add", "residual",
           "maxpool", "avgpool", "pool", "drop")  # fmt: skip
_NUMBERED = re.compile(r"(.*?)_?(\d{1,9})(?:_(.+))?")


def infer_order(probes: Iterable[str], lengths: Mapping[str, int]) -> list[str]:
    """The probes in their likely forward order; `lengths` gives the last axis of the outputs that are known."""
    names = sorted(probes)
    groups = {name: match for name in names if (match := _NUMBERED.fullmatch(name))}
    longest_numbered = max((lengths[name] for name in groups if name in lengths), default=None)

    def key(name: str) -> tuple[int, int, int, str]:
        match = groups.get(name)
        if match and name != "loss":
            return 1, int(match[2]), _rank(match[3] or match[1], _INSIDE), name
        if _rank(name, _FIRST) < len(_FIRST):
            return 0, 0, _rank(name, _FIRST), name
        if "pool" in name and _rank(name, _LAST) == len(_LAST) and longest_numbered is not None:
            # A pool without a number shortens either the input or the result: its length tells which.
            before = lengths.get(name, 0) >= longest_numbered
            return (0, 0, len(_FIRST), name) if before else (2, 0, 0, name)
        return 2, 0, _rank(name, _LAST), name

    return sorted(names, key=key)


def _rank(name: str, words: tuple[str, ...]) -> int:
    """The place of the longest word that the name begins with; behind all of them when none does."""
    found = [word for word in words if name.lower().startswith(word)]
    return words.index(max(found, key=len)) if found else len(words)
