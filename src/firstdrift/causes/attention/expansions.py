"""Key and value heads written out for the query heads along the wrong axis, or read with other axes than written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import numpy as np

from .claims import Case, Claim
from .rotary import Floats

AXES = {"t": "tokens", "h": "heads", "r": "repeats"}
READINGS = {"heads first": "hrt", "tokens first": "thr"}  # how the memory is read, and the order that is meant


def expansion(case: Case) -> Iterator[Claim]:
    """Keys and values repeated in one order of axes and read in another."""
    base = case.settings
    if base.kv_heads == base.heads or base.rotary is not None or base.norm is not None or base.tiled:
        return
    operands = case.problem.operands
    written = replace(base, kv_heads=base.heads, groups=None)
    right = expanded(operands.k, base.kv_heads, base.heads, "hrt", "heads first")
    tiled = expanded(operands.k, base.kv_heads, base.heads, "rht", "heads first")
    for memory, reading in product(map("".join, permutations(AXES)), READINGS):
        k, v = (expanded(x, base.kv_heads, base.heads, memory, reading) for x in (operands.k, operands.v))
        if np.array_equal(k, right) or np.array_equal(k, tiled):
            continue
        order = ", ".join(AXES[one] for one in memory)
        said = f"key and value heads are written out in the order of {order}, and read {reading}"
        other = replace(case.problem, operands=replace(operands, k=k, v=v, memory={}))
        yield Claim("axis-order", said, written, {"order": memory, "read": reading}, problem=other)


def expanded(x: Floats, kv_heads: int, heads: int, memory: str, reading: str) -> Floats:
    """A projection (batch, tokens, width) of few heads as one of all, by the order of the memory and how it is read."""
    batch, tokens, width = x.shape
    channels = width // kv_heads
    shape = (batch, tokens, kv_heads, heads // kv_heads, channels)
    many = np.broadcast_to(x.reshape(batch, tokens, kv_heads, 1, channels), shape)
    laid = many.transpose(0, *(1 + "thr".index(one) for one in memory), 4)
    if reading == "heads first":
        return laid.reshape(batch, heads, tokens, channels).transpose(0, 2, 1, 3).reshape(batch, tokens, -1)
    return laid.reshape(batch, tokens, heads * channels)


VARIANTS = (expansion,)
