"""Variants of how heads are divided, shared, ordered and joined, and of which projection is which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, permutations, product

import numpy as np

from .claims import Case, Claim
from .formula import attended, divide
from .operands import SPLITS, Shape, operands
from .problem import SCREEN, problem

AXES = {"htd": "heads and tokens", "tdh": "heads and channels"}


def axes(case: Case) -> Iterator[Claim]:
    """Heads taken from, or put back into, the wrong axes."""
    base = case.settings
    for given, joined in product(("thd", *AXES), repeat=2):
        if (given, joined) == (base.axes, base.merge):
            continue
        if case.problem.reads != "out" and joined != base.merge:
            continue
        words = []
        if given != base.axes:
            words.append(f"{AXES.get(given, 'the axes')} are confused where q, k and v are divided into heads")
        if joined != base.merge:
            words.append(f"{AXES.get(joined, 'the axes')} are confused where heads are joined")
        whole = None
        if joined == "htd" and not case.problem.complete(base.heads, SCREEN):
            continue
        if joined == "htd" and case.problem.operands.projection is not None:
            whole = case.problem  # every row of the output needs all queries
        claim = replace(base, axes=given, merge=joined)
        facts = {"divided": given, "joined": joined}
        yield Claim("head-permutation", " and ".join(words), claim, facts, problem=whole)


def sharing(case: Case) -> Iterator[Claim]:
    """Keys and values shared among query heads in another order."""
    base = case.settings
    if 1 < base.kv_heads < base.heads:
        now, then = ("repeated", "tiled") if base.tiled else ("tiled", "repeated")
        claim = replace(base, tiled=not base.tiled)
        yield Claim("gqa-order", f"key and value heads are {now} instead of {then}", claim, {"order": now})
    if base.kv_heads == 1 or case.problem.reads != "out" or case.problem.operands.projection is not None:
        return
    groups = _best_groups(case)
    usual = tuple(int(head) for head in np.arange(base.heads) // (base.heads // base.kv_heads))
    tiled = tuple(int(head) for head in np.arange(base.heads) % base.kv_heads)
    if groups is not None and groups not in (usual, tiled):
        shown = ", ".join(map(str, groups[:8]))
        label = "head-permutation" if base.kv_heads == base.heads else "gqa-order"
        yield Claim(
            label, f"the query heads use the key heads {shown}{', ...' if len(groups) > 8 else ''}",
            replace(base, groups=groups), {"key_heads": list(groups)}, free=_moved(groups, usual),
        )  # fmt: skip


def order(case: Case) -> Iterator[Claim]:
    """Whole heads of the output in another order."""
    base, screen = case.settings, case.screen
    if screen.reads != "out" or screen.operands.projection is not None or base.heads < 2:
        return
    made = attended(screen.operands, base, screen.rows)
    found = divide(screen.observed, base.heads, base.merge)[:, screen.rows]
    if not np.isfinite(found).all() or made.shape != found.shape:
        return
    a, b = (np.moveaxis(x, 2, 0).reshape(base.heads, -1) for x in (found, made))
    mapping = tuple(int(head) for head in np.argmax(a @ b.T / np.maximum(np.linalg.norm(b, axis=1), 1e-300), axis=1))
    if len(set(mapping)) < base.heads or mapping == tuple(range(base.heads)):
        return
    moved = screen.scale and float(np.linalg.norm(a - b[list(mapping)])) / screen.scale
    if moved <= max(case.limit, 0.1 * case.whole):
        yield Claim(
            "head-permutation", f"the heads are in the order {', '.join(map(str, mapping[:8]))}",
            replace(base, order=mapping), {"heads": list(mapping)},
            free=1 if _named(mapping) else _moved(mapping, tuple(range(base.heads))) - 1,
        )  # fmt: skip


def roles(case: Case) -> Iterator[Claim]:
    """q, k and v exchanged, or a fused projection divided in another way."""
    base, structure = case.settings, case.reference.structure
    shapes = []
    for chosen in (*permutations("qkv"), tuple("qkk"), tuple("qvv")):
        named = "".join(chosen)
        if "qkv" in case.candidate.parts and len(set(named)) == 3:
            shapes += [(Shape(split, named), named) for split in SPLITS]
        elif "qkv" not in case.candidate.parts:
            shapes.append((Shape(structure.shape.split, named), named))
    if "kv" in case.candidate.parts:
        shapes += [(Shape(split), "qkv") for split in SPLITS]
    for shape, named in shapes:
        if shape == structure.shape:
            continue
        found = operands(case.candidate, shape, base.heads, base.kv_heads)
        if found is None or found.q.shape != case.problem.operands.q.shape:
            continue
        if found.v.shape != case.problem.operands.v.shape:
            continue
        if shape.split == structure.shape.split:
            sentence = f"the projections are taken as {', '.join(named)} where q, k, v are meant"
        else:
            sentence = f"q, k and v are divided by {shape.split} instead of by {structure.shape.split}"
        other = problem(found, case.problem.observed, case.problem.other, case.problem.profile)
        yield Claim("qkv-order", sentence, base, {"order": named, "split": shape.split}, problem=other)


def _best_groups(case: Case) -> tuple[int, ...] | None:
    """For each query head, the key head with which it gives what was found."""
    base, screen = case.settings, case.screen
    found = divide(screen.observed, base.heads, base.merge)[:, screen.rows]
    if not np.isfinite(found).all():
        return None
    errors = []
    for head in range(base.kv_heads):
        made = attended(screen.operands, replace(base, groups=(head,) * base.heads), screen.rows)
        errors.append(((made - found) ** 2).sum(axis=(0, 1, 3)))
    return tuple(int(head) for head in np.argmin(np.stack(errors), axis=0))


def _moved(mapping: tuple[int, ...], usual: tuple[int, ...]) -> int:
    return sum(a != b for a, b in zip(mapping, usual, strict=True))


def _named(mapping: tuple[int, ...]) -> bool:
    """Whether a permutation is one that has a name: reversed, or rotated."""
    n = len(mapping)
    steps = {(b - a) % n for a, b in pairwise(mapping)}
    return steps in ({1}, {n - 1})


VARIANTS = (axes, sharing, order, roles)
