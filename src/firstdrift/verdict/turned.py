"""Rows that are turned, each by a rotation: what scales rows one by one makes the same of them before and after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..compare.pairs import Pair
from ..compare.result import PairResult
from ..dtypes import roundoff
from ..sites import Site
from ..traces import Array
from .rows import Floats, matrices, varies

SCALED = 1e-3  # of a tensor: how far rows may be from multiples of others; a gain of its own per channel is further
ROUNDINGS = 4.0  # or so many of a short format

Results = Mapping[Site, PairResult]
Load = Callable[[Pair], tuple[Array, Array]]


def is_turned(both: tuple[Array, Array], limit: float) -> bool:
    """Whether each row is as long as the reference's."""
    rows = matrices(both)
    if rows is None:
        return False
    ours, theirs = (np.linalg.norm(one, axis=1) for one in rows)
    return float(np.linalg.norm(theirs - ours)) <= limit * float(np.linalg.norm(ours))


def are_scaled(region: frozenset[Site], results: Results, load: Load) -> bool:
    """Whether the sites of a region are what one module is fed and what it makes: the rows it is fed, each times a
    number of its own, on both sides. Whatever else a module did would not pass a rotation."""
    fed = [site for site in region if site.port.startswith("in.")]
    made = [site for site in region if not site.port.startswith("in.")]
    if len(fed) != 1 or not made or any((one.name, one.call) != (fed[0].name, fed[0].call) for one in made):
        return False
    before = load(results[fed[0]].pair)
    pair = results[fed[0]].pair
    limit = max(SCALED, ROUNDINGS * roundoff(pair.reference.dtype, pair.candidate[0].dtype))
    return all(_scales(x, z, limit) for one in made for x, z in zip(before, load(results[one].pair), strict=True))


def _scales(before: Array, after: Array, limit: float) -> bool:
    rows = matrices((before, after))
    if rows is None:
        return False
    x, z = rows
    factors: Floats = np.sum(x * z, axis=1) / np.sum(x * x, axis=1)
    return varies(factors) and float(np.linalg.norm(z - factors[:, None] * x)) <= limit * float(np.linalg.norm(z))
