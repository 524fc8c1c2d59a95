"""Latent attention: keys and values are projected from a narrow latent; one part of the keys is shared by all heads.

The queries of a head are [plain | rotated]; the second projection of the latent gives each head [plain key | value];
the first one ends with the rotated part of the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from .roles import role
from .rotary import Floats

LATENT = "latent"
SPLITS = (LATENT, "latent, rotated first")
NARROW = {"a", "mqa", "down", "compressed", "latent", "rope", "pe", "kr"}  # words of what is shared by all heads


def latent_parts(given: Mapping[str, Floats]) -> dict[str, Floats] | None:
    """The queries, the latent (or only its rotated part) and what was projected from it; None where it is not so."""
    named = {name: role(name) for name, value in given.items() if value.ndim == 3 and "norm" not in name.lower()}
    queries = [name for name, which in named.items() if which == "q"]
    pairs = [name for name, which in named.items() if which in ("k", "kv")]
    narrow = [name for name in pairs if set(re.split(r"[._\d]+", name.rpartition(".")[2].lower())) & NARROW]
    wide = [name for name in pairs if name not in narrow and named[name] == "kv"]
    if len(queries) != 1 or len(narrow) != 1 or len(wide) != 1 or "v" in named.values():
        return None
    return {"q": given[queries[0]], LATENT: given[narrow[0]], "kv": given[wide[0]]}


def divisions(parts: Mapping[str, Floats], out: int) -> Iterator[int]:
    """How many heads the widths allow."""
    for heads in range(1, out + 1):
        rotated = _rotated(parts, out, heads)
        if rotated is not None:
            yield heads


def divided(parts: Mapping[str, Floats], out: int, heads: int, split: str) -> tuple[dict[str, Floats], int] | None:
    """q, k and v as if every head had keys of its own, the rotated channels first, and how many these are."""
    rotated = _rotated(parts, out, heads)
    if rotated is None:
        return None
    q, kv = (parts[name].reshape(*parts[name].shape[:2], heads, -1) for name in ("q", "kv"))
    plain = q.shape[-1] - rotated
    if split == LATENT:
        q = np.concatenate([q[..., plain:], q[..., :plain]], axis=-1)
    shared = parts[LATENT][:, :, None, -rotated:]
    k = np.concatenate([np.broadcast_to(shared, (*kv.shape[:3], rotated)), kv[..., :plain]], axis=-1)
    made = {"q": q, "k": k, "v": kv[..., plain:]}
    return {name: x.reshape(*x.shape[:2], -1) for name, x in made.items()}, rotated


def _rotated(parts: Mapping[str, Floats], out: int, heads: int) -> int | None:
    """How many channels of a head are rotated, where so many heads fit."""
    widths = [parts[name].shape[-1] for name in ("q", "kv")]
    if any(width % heads for width in (*widths, out)):
        return None
    plain = (widths[1] - out) // heads
    rotated = widths[0] // heads - plain
    fits = plain > 0 and rotated > 1 and rotated % 2 == 0 and rotated <= parts[LATENT].shape[-1]
    return rotated if fits else None
