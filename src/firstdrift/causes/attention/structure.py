"""Into how many heads an attention is divided, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ...strict_json import Json
from .formula import Settings, divide
from .latent import LATENT, divisions
from .latent import SPLITS as LATENT_SPLITS
from .operands import SPLITS, Shape, operands
from .problem import Problem, at_rows, beginning, problem, profile
from .sources import Sources

HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead", "num_attention_heads")
KV_HEADS = ("num_kv_heads", "num_key_value_heads", "n_kv_heads", "n_kv_head", "kv_heads")
SOME = 2  # samples, which tell as much of what lies between what as all do
WIDTHS = ("head_dim", "head_size", "d_head", "attention_head_size", "d_kv")


@dataclass(frozen=True, slots=True)
class Structure:
    """One division into heads."""

    shape: Shape
    heads: int
    kv_heads: int
    tiled: bool = False

    def settings(self, scale: float = 1.0) -> Settings:
        """Settings with this structure and nothing else."""
        return Settings(self.heads, self.kv_heads, scale, tiled=self.tiled)


def number(attrs: Mapping[str, Json], names: tuple[str, ...]) -> float | None:
    """The first number that is recorded under one of some names."""
    for name in names:
        value = attrs.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


def structures(given: Sources, attrs: Mapping[str, Json]) -> Iterator[Structure]:
    """Every division that the widths allow, the likely ones first."""
    if LATENT in given.parts:
        stated = number(attrs, HEADS)
        for split, heads in product(LATENT_SPLITS, divisions(given.parts, given.observed.shape[-1])):
            if not stated or heads == stated:
                yield Structure(Shape(split), heads, heads)
        return
    for heads, kv_heads in _divisions(given, attrs):
        fused = "qkv" in given.parts or "kv" in given.parts
        for split in SPLITS if fused else SPLITS[:1]:
            yield Structure(Shape(split), heads, kv_heads)
            if 1 < kv_heads < heads:
                yield Structure(Shape(split), heads, kv_heads, tiled=True)


def _divisions(given: Sources, attrs: Mapping[str, Json]) -> Iterator[tuple[int, int]]:
    stated, width = given.heads or number(attrs, HEADS), number(attrs, WIDTHS)
    if given.observed.ndim == 4:
        stated = given.observed.shape[1]
    parts = given.parts
    out = given.observed.shape[-1] if given.projection is None else given.projection[0].shape[1]
    if "q" in parts:
        wide = parts["q"].shape[-1]
    elif given.observed.ndim == 4:  # only the scores are known, and so not how wide the output is
        wide = parts["qkv"].shape[-1] // 3
    else:
        wide = out
    rest = (
        parts["k"].shape[-1]
        if "k" in parts
        else (sum(p.shape[-1] for n, p in parts.items() if n != "q") - (0 if "q" in parts else wide)) // 2
    )
    for heads in range(1, wide // 2 + 1):
        if wide % heads or (stated and heads != stated) or (width and wide // heads != width):
            continue
        channels = wide // heads
        if rest and rest % channels == 0 and heads % (rest // channels) == 0:
            yield heads, rest // channels


def likely(
    given: Sources, other: Sources, attrs: Mapping[str, Json], limit: float
) -> tuple[list[tuple[Structure, Problem]], bool]:
    """The structures that what was observed does not rule out, and whether queries see only what came before.

    The first query that sees one key returns that key's value, whatever the scores: this tells how the heads share
    keys. The next one returns a mixture of two values, one share a head: this tells how many heads there are.
    """
    possible = []
    told = profile(given.observed, other.observed)
    for structure in structures(given, attrs):
        found = operands(given, structure.shape, structure.heads, structure.kv_heads)
        whole = None if found is None else problem(found, given.observed, other.observed, told)
        if whole is not None and _among_values(structure, whole, limit):
            possible.append((structure, whole))
    if not possible or possible[0][1].reads != "out" or possible[0][1].keys < 2 or given.sinks is not None:
        return possible, False
    causal = [one for one in possible if _first(*one, limit) is not None]
    if not causal:
        return possible, False
    return [one for one in causal if _mixes(*one, limit)] or causal, True


def _among_values(structure: Structure, given: Problem, limit: float) -> bool:
    """Whether every output lies between the least and the largest value of its channel, or zero: shares are positive,
    and sum to no more than one."""
    if given.reads != "out" or given.operands.projection is not None:
        return True
    v = divide(given.operands.v[:SOME], structure.kv_heads, "thd")
    rep = structure.heads // structure.kv_heads
    low, high = (
        np.tile(x, (1, rep, 1)) if structure.tiled else np.repeat(x, rep, axis=1)
        for x in (np.minimum(v.min(axis=1), 0.0), np.maximum(v.max(axis=1), 0.0))
    )
    made = divide(given.observed[:SOME], structure.heads, "thd")
    room = limit * float(np.abs(v).max(initial=0.0))
    return not bool(((made < low[:, None] - room) | (made > high[:, None] + room)).any())  # NaN is neither


def _starts(given: Problem) -> list[int]:
    """The queries of the first sample that may be the first one that is no padding."""
    mask = given.operands.mask
    if mask is None or given.keys != given.queries or mask.shape[2] != 1 or not np.isin(mask, (0, 1)).all():
        return [0]
    return sorted({int(np.argmax(mask[0, 0, 0] == value)) for value in (0, 1)})


def _alone(given: Problem, row: int) -> Problem:
    """One query of the first sample, and the keys up to it."""
    return at_rows(beginning(given, row + 1, np.array([0])), np.array([row]))


def _first(structure: Structure, given: Problem, limit: float) -> int | None:
    """The query that returns its own value, which sees nothing else; None where there is none."""
    itself = replace(structure.settings(), diagonal=0, window=1)
    return next((row for row in _starts(given) if _alone(given, row).error(itself) <= limit), None)


def _mixes(structure: Structure, given: Problem, limit: float) -> bool:
    """Whether the query after the first returns, in each head, a mixture of two values."""
    row = _first(structure, given, limit)
    if row is None or given.operands.projection is not None or row + 1 >= given.queries:
        return True
    one = _alone(given, row + 1)
    off = one.difference(replace(structure.settings(), diagonal=0, window=1))
    step = one.difference(replace(structure.settings(), diagonal=-1, window=2)) - off
    share = (off * step).sum(axis=-1, keepdims=True) / np.maximum((step * step).sum(axis=-1, keepdims=True), 1e-300)
    return float(np.linalg.norm(off - share * step)) / one.scale <= limit
