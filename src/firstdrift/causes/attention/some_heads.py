"""A change to some heads only: the heads that differ, as an attention of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .claims import Case, narrowed
from .fitting import Reference
from .formula import Indices, Operands, Settings, divide, merge
from .problem import Problem, profile
from .rotary import Floats
from .structure import Structure


def of_some_heads(case: Case) -> tuple[Case, Indices] | None:
    """The case of the heads that differ, and which these are; None where all do, or heads cannot be told apart."""
    base, whole = case.settings, case.problem
    mixed = base.order is not None or base.groups is not None or (base.axes, base.merge) != ("thd", "thd")
    if base.heads < 2 or mixed or whole.operands.projection is not None or whole.operands.prefix is not None:
        return None
    off = case.screen.difference(base)
    axes = (0, 1, 3) if case.screen.reads == "out" else (0, 2, 3)
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.sqrt((off**2).sum(axis=axes)) / case.screen.scale
    chosen = np.flatnonzero(~(errors <= case.limit))
    if not 0 < len(chosen) < base.heads:
        return None
    settings = _settings(base, chosen)
    problem = _problem(whole, base, chosen)
    structure = Structure(case.reference.structure.shape, settings.heads, settings.kv_heads)
    reference = Reference(structure, settings, _problem(case.reference.problem, base, chosen))

    def restored(predicted: Floats) -> Floats:
        full = case.final.predicted(base).copy()
        if whole.reads == "out":
            divide(full, base.heads, base.merge)[:, :, chosen] = divide(predicted, len(chosen), base.merge)
        else:
            full[:, chosen] = predicted
        return case.restored(full)

    return narrowed(reference, replace(case.candidate, norms={}), problem, case.limit, case.noise, restored), chosen


def _settings(base: Settings, chosen: Indices) -> Settings:
    slopes = None if base.slopes is None else base.slopes[chosen]
    return replace(base, heads=len(chosen), kv_heads=len(chosen), tiled=False, slopes=slopes)


def _problem(given: Problem, base: Settings, chosen: Indices) -> Problem:
    shares = base.heads // base.kv_heads
    groups = chosen % base.kv_heads if base.tiled else chosen // shares

    def of(x: Floats, heads: int, which: Indices) -> Floats:
        return merge(divide(x, heads, "thd")[:, :, which], "thd")

    o = given.operands
    mask, bias = (x if x is None or x.shape[1] == 1 else x[:, chosen] for x in (o.mask, o.bias))
    keys, values = (of(x, base.kv_heads, groups) for x in (o.k, o.v))
    sinks = None if o.sinks is None else o.sinks[chosen]
    operands = Operands(of(o.q, base.heads, chosen), keys, values, mask, bias, sinks=sinks)
    if given.reads == "out":
        observed, other = (of(x, base.heads, chosen) for x in (given.observed, given.other))
    else:
        observed, other = given.observed[:, chosen], given.other[:, chosen]
    return replace(given, operands=operands, observed=observed, other=other, profile=profile(observed, other))
