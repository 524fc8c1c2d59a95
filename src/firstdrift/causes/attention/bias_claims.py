"""The claim that a bias is added to the scores, of which there is no record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .biases import bias_of, small
from .claims import Case, Claim, Tables
from .problem import Problem
from .rotary import Floats


def unrecorded(case: Case) -> Iterator[Claim]:
    """A bias that the reference has not, of which there is no record."""
    base = case.settings
    given = small(case.problem, base)
    if given is None or base.biased or base.slopes is not None:
        return
    for by_distance in (True, False):
        bias = bias_of(base, given, case.limit, by_distance)
        if bias is None:
            continue
        what = "depends on the distance of query and key only" if by_distance else "is the same for all samples"
        biased = replace(given, operands=replace(given.operands, bias=bias, memory={}))
        named = of_table(bias, given, case.tables) if by_distance else None
        told = "" if named is None else f", and whose numbers are those of {named}"
        yield Claim(
            "missing-term", f"a bias is added to the scores that the reference has not, which {what}{told}",
            replace(base, biased=True), {"by_distance": by_distance, "table": named},
            free=1 if named else base.heads * given.keys, problem=biased,
        )  # fmt: skip
        return


def of_table(bias: Floats, given: Problem, tables: Tables) -> str | None:
    """The recorded table (numbers, heads) that a bias was looked up in; a constant for each head does not show."""
    first = np.asarray(bias[0, :, -1, : given.queries][:, ::-1].T)  # (distances, heads), from the query's own key on
    heads = first.shape[1]
    for name, table in tables():
        rows = table if table.shape[1] == heads else table.T
        if rows.shape[1] != heads or not 1 < len(rows) <= 4096 or len(first) < 3:
            continue
        for row in rows[:512]:
            moved = first + (row - first[0])
            far = np.abs(moved[:, None] - rows[None]).max(axis=-1).min(axis=-1)
            if float(np.median(far)) < 1e-4 * max(float(np.abs(rows).max()), 1e-300):
                return name
    return None


VARIANTS = (unrecorded,)
