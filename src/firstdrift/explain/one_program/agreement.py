"""How well two arrays agree, and the numbers that make one out of the other."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ...core.traces import Array
from ..evidence import Evidence

Floats = NDArray[np.float64]

EXACT = 4.0  # times the noise: what leaves no more than this explains everything
LEAST_NOISE = 1e-12  # even float64 leaves this much
ENDLESS = 1e30  # no scale: the lowest numbers of a dtype fill what is masked
CHUNK = 1 << 18  # elements looked at at a time
SCREENED = 1024  # elements that are compared before all of them are
CHANCE = 0.05  # how likely a set of tries may be to hit one number by accident and still count as evidence
ALONE = 0.85  # how sure a cause is at most that other tensors or steps might bear out and none does


def floats(array: Array) -> Floats:
    """An array as float64."""
    return np.asarray(array, np.float64)


def limit(evidence: Evidence) -> float:
    """The relative error that noise explains."""
    return EXACT * max(evidence.noise, LEAST_NOISE)


def distance(a: Array, b: Array) -> float:
    """The L2 distance of two arrays relative to the larger one; infinite where they cannot be compared."""
    if a.shape != b.shape:
        return float("inf")
    x, y = floats(a), floats(b)
    with np.errstate(all="ignore"):
        scale = max(float(np.linalg.norm(x)), float(np.linalg.norm(y)))
        error = float(np.linalg.norm(x - y))
    if not np.isfinite(error):
        return float("inf")
    return error / scale if scale > 0 else 0.0


def agree(evidence: Evidence, a: Array, b: Array) -> bool:
    """Whether noise explains the difference of two arrays; of large ones, some elements are looked at first."""
    if a.shape == b.shape and a.size > 4 * SCREENED:
        at = np.random.default_rng(a.size).integers(0, a.size, SCREENED)
        where = np.unravel_index(at, a.shape)
        if distance(a[where], b[where]) > 2 * limit(evidence):
            return False
    return distance(a, b) <= limit(evidence)


def size_of(array: Array) -> float:
    """The L2 norm of an array, without what stands for infinity and what is no number."""
    total, flat = 0.0, array.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        values = np.asarray(flat[start : start + CHUNK], np.float64)
        usual = np.abs(values) < ENDLESS
        values = values if usual.all() else values[usual]
        total += float(values @ values)
    return math.sqrt(total)


def factor(a: Array, b: Array) -> float:
    """The number by which `a` comes closest to `b`; not a number where `a` is zero."""
    x, y = floats(a).ravel(), floats(b).ravel()
    square = float(x @ x)
    return float(x @ y) / square if square > 0 and np.isfinite(square) else float("nan")


def telling(evidence: Evidence, tries: int) -> bool:
    """Whether one number that agrees with one of so many tries means anything at this noise."""
    return 2 * tries * limit(evidence) <= CHANCE


def snapped(value: float, menu: Iterable[float], tolerance: float) -> float | None:
    """The number of a menu that a fitted value stands for."""
    near = [one for one in menu if one != 0 and abs(value / one - 1) <= tolerance]
    return min(near, key=lambda one: abs(value / one - 1)) if near else None


def rounded(value: float, tolerance: float) -> float:
    """A fitted value with as few digits as it can be told apart by; itself where it needs more than three."""
    for digits in range(1, 4):
        short = float(f"{value:.{digits}g}")
        if value and abs(short / value - 1) <= tolerance:
            return short
    return value
