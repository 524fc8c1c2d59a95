"""Whether two runs are of one operation, as far as names say; a layer of one side may be several nodes of the other.

A linear layer with a bias ends in the sum that adds it, a norm with a gain and a gated activation in a product.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..conventions import PRODUCTS
from .outline import Outline, Run, dims_of

OTHER_FAMILY = -12.0  # one is a norm, the other a product
SAME_FAMILY = 3.0
MAY_BE = 0.0
SCALED = frozenset({"norm", "activation"})  # what may end in a product of two tensors
GATES = frozenset({"sigmoid", "activation"})  # one is exchanged for the other, or is a part of it


class _Kind(NamedTuple):
    """What a name says of an operation. `adds` is whether a bias is in it; None where nobody knows."""

    family: str | None
    adds: bool | None
    opened: bool  # a node of an engine that gives a sum a node of its own


def operations(reference: Outline, candidate: Outline) -> NDArray[np.float64]:
    """What the operations say of each pair, in bits."""
    sides = [[_kind(run, side) for run in side.runs] for side in (reference, candidate)]
    kinds = [list(dict.fromkeys(side)) for side in sides]
    said = np.array([[_said(a, b) for b in kinds[1]] for a in kinds[0]], np.float64)
    rows, columns = ([kind.index(one) for one in side] for kind, side in zip(kinds, sides, strict=True))
    return said.reshape(len(kinds[0]), len(kinds[1]))[np.ix_(rows, columns)]


def _kind(run: Run, side: Outline) -> _Kind:
    family = "product" if run.family in PRODUCTS else run.family
    roles = {side.weights[n].role for n in side.owned.get(run.name, ())}
    if roles or family not in ("product", "add"):
        return _Kind(family, "bias" in roles if roles else None, opened=False)
    near = _next(run, side) if family == "product" else _previous(run, side)
    beside = "add" if family == "product" else "product"
    split = near is not None and _plain(near) == beside and dims_of(near.output) == dims_of(run.output)
    return _Kind(family, split if family == "add" else None, opened=split)


def _plain(run: Run) -> str | None:
    return "product" if run.family in PRODUCTS else run.family


def _next(run: Run, side: Outline) -> Run | None:
    after = side.runs[run.place + 1 : run.place + 2] if not run.after else [side.runs[n] for n in run.after]
    return after[0] if len(after) == 1 else None


def _previous(run: Run, side: Outline) -> Run | None:
    """What made the only product that a sum reads."""
    before = [side.runs[n] for n in run.before]
    products = [one for one in before if _plain(one) == "product"]
    return products[0] if len(products) == 1 else None


def _said(reference: _Kind, candidate: _Kind) -> float:
    if reference.family is None or candidate.family is None:
        return MAY_BE
    families = {reference.family, candidate.family}
    if len(families) == 1:
        with_bias = families == {"product"} and (
            (reference.adds and candidate.opened) or (candidate.adds and reference.opened)
        )
        return MAY_BE if with_bias else SAME_FAMILY
    ending, whole = (reference, candidate) if reference.family in ("add", "multiply") else (candidate, reference)
    if ending.family == "add" and whole.family in ("product", "norm"):
        if whole.adds is False:
            return OTHER_FAMILY
        return SAME_FAMILY if ending.adds and whole.adds and whole.family == "product" else MAY_BE
    if (ending.family == "multiply" and whole.family in SCALED) or families == GATES:
        return MAY_BE
    return OTHER_FAMILY
