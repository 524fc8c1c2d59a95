"""The operands of an attention: queries, keys and values by a division of what was recorded into heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .formula import Operands
from .latent import LATENT, divided
from .latent import SPLITS as LATENT_SPLITS
from .norming import Norm, normed
from .rotary import Floats
from .sources import Sources

SPLITS = ("blocks", "heads", "features")  # [q | k | v], [q | k | v] for each head (group), and for each channel


@dataclass(frozen=True, slots=True)
class Shape:
    """How a recorded projection is divided into q, k and v."""

    split: str = "blocks"
    order: str = "qkv"


def operands(given: Sources, shape: Shape, heads: int, kv_heads: int) -> Operands | None:
    """q, k and v by a division into heads, or None where the widths do not allow it."""
    parts, rotated = dict(given.parts), None
    if LATENT in parts:
        usual = shape.order == "qkv" and shape.split in LATENT_SPLITS
        told = None if not usual else divided(parts, given.observed.shape[-1], heads, shape.split)
        if told is None:
            return None
        parts, rotated = told
    elif "qkv" in parts:
        parts = _divided(parts["qkv"], "qkv", shape, heads, kv_heads) | parts  # of which some may have been changed
    elif "kv" in parts:
        parts = _divided(parts["kv"], "kv", Shape(shape.split, "kv"), kv_heads, kv_heads) | parts
    if not {"q", "k", "v"} <= set(parts):
        return None
    q, k, v = (parts[name] for name in (shape.order if "qkv" not in given.parts else "qkv"))
    if q.shape[-1] % heads or k.shape[-1] % kv_heads or q.shape[-1] // heads != k.shape[-1] // kv_heads:
        return None
    if v.shape[:2] != k.shape[:2] or v.shape[-1] % kv_heads or q.shape[0] != k.shape[0]:
        return None
    made = heads * (v.shape[-1] // kv_heads)  # the width of the output
    if (
        given.observed.ndim == 3
        and made != (given.observed if given.projection is None else given.projection[0]).shape[-1]
    ):
        return None
    channels = q.shape[-1] // heads
    if any(norm.gain is not None and norm.gain.size % channels for norm in given.norms.values()):
        return None
    q, k = _normed(q, given.norms.get("q"), heads), _normed(k, given.norms.get("k"), kv_heads)
    mask, bias = (one if one is not None and one.shape[1] in (1, heads) else None for one in (given.mask, given.bias))
    sinks = given.sinks if given.sinks is not None and given.sinks.size == heads else None
    return Operands(q, k, v, mask, bias, given.projection, rotated, sinks)


def _normed(x: Floats, norm: Norm | None, heads: int) -> Floats:
    return x if norm is None else normed(x.reshape(*x.shape[:2], heads, -1), norm).reshape(x.shape)


def _divided(x: Floats, roles: str, shape: Shape, heads: int, kv_heads: int) -> dict[str, Floats]:
    """A fused projection as its parts."""
    rep = heads // kv_heads
    shares = [rep if name == "q" else 1 for name in shape.order]
    total = sum(shares) * kv_heads
    batch, tokens, width = x.shape
    if len(shape.order) != len(roles) or width % total:
        return {}
    channels = width // total
    if shape.split == "blocks":
        edges = np.cumsum([share * kv_heads * channels for share in shares])[:-1]
        pieces = np.split(x, edges, axis=-1)
    elif shape.split == "heads":
        groups = x.reshape(batch, tokens, kv_heads, sum(shares), channels)
        pieces = [
            piece.reshape(batch, tokens, -1) for piece in np.split(groups, np.cumsum(shares)[:-1].tolist(), axis=3)
        ]
    else:
        pieces = [x[..., one :: len(roles)] for one in range(len(roles))]
        if rep != 1:
            return {}
    return dict(zip(shape.order, pieces, strict=True))
