"""Which of an attention's tensors is the query, the key, the value, the fused three, or the output projection."""

from __future__ import annotations

import re

ROLES = {
    "q": {"q", "wq", "query", "queries"},
    "k": {"k", "wk", "key", "keys"},
    "v": {"v", "wv", "value", "values"},
    "qkv": {"qkv", "wqkv"},
    "kv": {"kv", "wkv"},
    "o": {"o", "wo", "out", "output", "dense"},
}
FUSED = {"c_attn", "in_proj", "wpack", "w_pack", "in_proj_weight", "in_proj_bias"}
OUTPUTS = {"c_proj", "proj"}
PARAMETERS = {"weight", "bias", "kernel"}


def role(name: str) -> str:
    """The role that a name gives, or the empty string; read from the last part of the name that says one."""
    if "mask" in name.lower() or "position" in name.lower():
        return ""
    parts = [part for part in re.split(r"[./]", name.lower()) if part not in PARAMETERS]
    for part in reversed(parts[-2:]):
        if part in FUSED:
            return "qkv"
        if part in OUTPUTS:
            return "o"
        words = set(re.split(r"[_\d]+", part))
        given = [one for one, tokens in ROLES.items() if tokens & words]
        if {"q", "k", "v"} <= set(given):
            return "qkv"
        if {"k", "v"} <= set(given):
            return "kv"
        if given:
            return given[0]
    return ""
