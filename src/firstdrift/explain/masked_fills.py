"""Fills: the huge negative constant that a mask puts where nothing may be seen.

It says nothing and drowns the rest: beside -1e9, scores that are off by a tenth differ by 1e-10 of the tensor. And it
is free to choose: -1e9, -inf and the least number of a dtype mask alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from ..core.scratch import mapped_rows, row_slices
from ..core.traces import Array, Trace
from ..judge.measure.measuring import load_recorded
from ..pair.pairs import Pair

LEAST = 256.0  # times everything else, or as a number, that a fill is below zero
CERTAIN = 1000.0  # the same of a fill that may be another one on the other side
SPREAD = 4.0  # times everything else, that a fill varies by where it was added to what it hides
_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class _Fill:
    lowest: float
    largest: float  # of everything else
    places: Array


def load_without_fills(pair: Pair, reference: Trace, candidate: Trace) -> tuple[Array, Array]:
    """Both tensors of a pair, brought together; where both have a mask's fill, it is -inf."""
    of_reference, of_candidate = load_recorded(pair, reference, candidate)
    return without_fills(of_reference, of_candidate) if pair.site.phase == "fwd" else (of_reference, of_candidate)


def without_fills(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Both tensors, with -inf for a fill that both have at the same places; as they are, where they have none."""
    if not (_may_be_filled(reference) and (candidate is reference or _may_be_filled(candidate))):
        return reference, candidate
    one = _fill(reference)
    other = one if candidate is reference else _fill(candidate)
    if one is None or other is None or (one.lowest == other.lowest == -inf) or not _alike(one, other):
        return reference, candidate
    emptied = _emptied(reference, one.places)
    return emptied, emptied if candidate is reference else _emptied(candidate, other.places)


def _may_be_filled(array: Array) -> bool:
    """Whether some number is low enough. Of numbers below zero the lowest has the largest bits, in every format."""
    if array.dtype.kind not in "fV" or array.ndim < 2 or not array.size or array.dtype.itemsize not in _BITS:
        return False
    bits = _BITS[array.dtype.itemsize]
    return bool(array.view(bits).max() >= np.asarray(-LEAST).astype(array.dtype).view(bits))


def _fill(array: Array) -> _Fill | None:
    lowest = min(float(np.fmin.reduce(rows, axis=None)) for rows in row_slices(array))
    edge = -LEAST if lowest == -inf else lowest / 2
    if edge > -LEAST / 2 or _is_beside_large_numbers(lowest, array):
        return None
    places = mapped_rows(lambda rows: rows <= edge, array)
    highest, largest = -inf, 0.0
    for rows, far in zip(row_slices(array), row_slices(places), strict=True):
        hidden = far.astype(bool)
        highest = max(highest, float(np.max(rows, initial=-inf, where=hidden)))
        near = np.abs(np.where(hidden | ~np.isfinite(rows), 0.0, rows))
        largest = max(largest, float(near.max(initial=0.0)))
    spread = 0.0 if lowest == -inf else highest - lowest
    if lowest > -LEAST * max(1.0, largest) or (lowest == -inf < highest) or spread > _varies(lowest, largest, array):
        return None
    return _Fill(lowest, largest, places)


def _is_beside_large_numbers(lowest: float, array: Array) -> bool:
    """Whether the largest number alone tells that the lowest is no fill, as in most tensors with outliers."""
    highest = max(float(np.fmax.reduce(rows, axis=None)) for rows in row_slices(array))
    return isfinite(highest) and lowest > -LEAST * max(1.0, highest)


def _varies(lowest: float, largest: float, array: Array) -> float:
    """By how much a fill varies that was added to numbers up to `largest`."""
    return SPREAD * largest + 2 * _step(lowest, array)


def _step(value: float, array: Array) -> float:
    """The distance of a number to the next one, in a tensor's dtype."""
    if value == -inf:
        return 0.0
    number = np.asarray(value).astype(array.dtype)
    return abs(float(number) - float((number.view(_BITS[array.dtype.itemsize]) - 1).view(array.dtype)))


def _alike(one: _Fill, other: _Fill) -> bool:
    """Whether two fills mask the same places: with the same number, or each with one that cannot be anything else."""
    if one.places.shape != other.places.shape or not np.array_equal(one.places, other.places):
        return False
    same = abs(one.lowest - other.lowest) <= SPREAD * max(one.largest, other.largest)
    return same or all(fill.lowest <= -CERTAIN * max(1.0, fill.largest) for fill in (one, other))


def _emptied(array: Array, places: Array) -> Array:
    return mapped_rows(lambda rows, far: np.where(far, np.asarray(-inf).astype(array.dtype), rows), array, places)
