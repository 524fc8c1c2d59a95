"""Rows that were sent to another of several like modules: tokens that a router, which nobody recorded, gave to another
expert at a near-tie.

What such a row is worth is not recorded either, so that nothing more can be said of it than that it changed hands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..compare.measuring import Measured
from ..compare.pairs import Pair
from ..sites import Site
from ..traces import Array
from .flips import FEW_ROWS
from .parts import LARGEST

Load = Callable[[Pair], tuple[Array, Array]]
Rows = NDArray[np.bool_]


def rows_sent_elsewhere(site: Site, items: Mapping[Site, Measured], load: Load, limit: float) -> int | None:
    """How many rows changed hands among like modules beside a site, if its error beyond `limit` lies in those alone."""
    shape = items[site].pair.reference.shape or ()
    if len(shape) < 2 or prod(shape) > LARGEST or site.phase != "agrad":
        return None
    for members in _groups(site, items):
        moved = _moved([load(items[member].pair) for member in members])
        if moved is None or moved.size != prod(shape[:-1]):
            continue
        ours, theirs = (np.asarray(array, np.float64).reshape(moved.size, -1) for array in load(items[site].pair))
        if float(np.linalg.norm((theirs - ours)[~moved])) <= limit * float(np.linalg.norm(ours)):
            return int(moved.sum())
    return None


def _groups(site: Site, items: Mapping[Site, Measured]) -> Iterable[list[Site]]:
    """Modules that differ in their last number alone, all beside or around a site."""
    groups: dict[tuple[object, ...], list[Site]] = {}
    for other, item in items.items():
        place = _place(other.name)
        if other.phase != "agrad" or other.step != site.step or place is None or item.measurement is None:
            continue
        before, after = place
        parent = before.rpartition(".")[0]
        if site.name.startswith(f"{parent}.") or not parent:
            key = (before, after, other.port, other.call, other.sample, item.pair.reference.shape)
            groups.setdefault(key, []).append(other)
    return (members for members in groups.values() if len(members) > 1)


def _place(name: str) -> tuple[str, str] | None:
    """A name before and after its last number."""
    parts = name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdecimal()]
    return (".".join(parts[: numbers[-1]]), ".".join(parts[numbers[-1] + 1 :])) if numbers else None


def _moved(members: list[tuple[Array, Array]]) -> Rows | None:
    """The rows that other members have a gradient for on either side, as many members each; None if there are none, or
    too many for near-ties."""
    if any(array.ndim < 2 for array in members[0]):
        return None
    ours, theirs = (np.stack([_rows(both[side]) for both in members]) for side in (0, 1))
    moved: Rows = (ours != theirs).any(0)
    if not 0 < int(moved.sum()) <= FEW_ROWS * moved.size or (ours.sum(0) != theirs.sum(0)).any():
        return None
    return moved


def _rows(array: Array) -> Rows:
    """Which rows hold anything but zeros."""
    found: Rows = (np.asarray(array, np.float64).reshape(-1, array.shape[-1]) != 0).any(-1)
    return found
