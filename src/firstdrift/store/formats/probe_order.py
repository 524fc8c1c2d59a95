"""The forward order of probes that nobody stated, read from their names.

Numbers group layers (`conv1`, `layer2_0_conv1`), the usual order of operations holds inside a group, what feeds a
network stands before the groups and what ends one behind them. It is a guess, and whoever uses it says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import inf

_FIRST = ("input", "prep", "stem", "embed", "wte", "wpe", "tok", "pos")
_LAST = ("adapt", "global", "gap", "flatten", "view", "reshape", "final", "norm_f", "ln_f", "linear", "fc", "dense",
         "classifier", "head", "proj_out", "output", "out", "logit", "softmax", "log_softmax", "sigmoid", "prob",
         "loss")  # fmt: skip
_INSIDE = ("q", "k", "v", "attn", "conv", "dw", "pw", "depthwise", "pointwise", "linear", "fc", "dense", "proj",
           "bn", "ln", "gn", "norm", "batchnorm", "layernorm", "relu", "gelu", "silu", "tanh", "act", "downsample",
           "shortcut", "add", "residual", "maxpool", "avgpool", "pool", "drop")  # fmt: skip
_WORDS = re.compile(r"[0-9]{1,18}|[^0-9_]+")
_BEFORE, _NUMBERED, _BEHIND = range(3)

Key = tuple[int, tuple[float, ...], float, int, str]


def infer_order(probes: Iterable[str], lengths: Mapping[str, int]) -> list[str]:
    """The probes in their likely forward order; `lengths` gives the last axis of the outputs that are known."""
    names = set(probes)
    keys = {name: _key(name, names) for name in names}
    pools = sorted(name for name in names if _is_loose_pool(name, keys[name]) and name in lengths)
    order = sorted(names.difference(pools), key=keys.__getitem__)
    for pool in pools:
        # A pool without a number shortens what comes after it: it stands before the first that is as short.
        numbered = [name for name in order if keys[name][0] == _NUMBERED]
        shorter = [name for name in numbered if lengths.get(name, inf) <= lengths[pool]]
        if shorter:
            order.insert(order.index(shorter[0]), pool)
        else:
            order.insert(order.index(numbered[-1]) + 1 if numbered else 0, pool)
    return order


def _key(name: str, names: set[str]) -> Key:
    path, words = _split(name)
    digits = [number for number, word in enumerate(words) if word.isdigit()]
    if not path and not digits:
        if _rank(name, _FIRST) < len(_FIRST):
            return _BEFORE, (), 0, _rank(name, _FIRST), name
        return _BEHIND, (), 0, _rank(name, _LAST), name
    if any(other.startswith(f"{name}_") for other in names) and not _is_operation(words[0]):
        return (
            _NUMBERED,
            (*path, *(int(words[at]) for at in digits), inf),
            inf,
            0,
            name,
        )  # a block ends behind its parts
    number = int(words[digits[0]]) if digits else inf
    operation = words[digits[0] + 1 :] or words[: digits[0]] if digits else words
    return _NUMBERED, path, number, _rank("_".join(operation), _INSIDE), name


def _split(name: str) -> tuple[tuple[float, ...], list[str]]:
    """The numbers of the blocks a probe lies in, and the words of its own: layer2_0_conv1 is (2, 0), conv 1."""
    words: list[str] = _WORDS.findall(name)
    path: list[float] = []
    while len(words) > 1:
        if words[0].isdigit():
            path.append(int(words.pop(0)))
        elif len(words) > 2 and words[1].isdigit() and not _is_operation(words[0]):
            path.append(int(words[1]))
            del words[:2]
        else:
            break
    return tuple(path), words or [name]


def _is_operation(word: str) -> bool:
    return _rank(word, _INSIDE) < len(_INSIDE)


def _is_loose_pool(name: str, key: Key) -> bool:
    return "pool" in name and key[0] == _BEHIND and _rank(name, _LAST) == len(_LAST)


def _rank(name: str, words: tuple[str, ...]) -> int:
    """The place of the longest word that the name begins with; behind all of them when none does."""
    found = [word for word in words if name.lower().startswith(word)]
    return words.index(max(found, key=len)) if found else len(words)
