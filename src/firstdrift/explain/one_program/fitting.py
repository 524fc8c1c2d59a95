"""Which numbers make a difference vanish, by steps of Gauss and Newton."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Left = Callable[[float], "Floats | None"]  # what a number leaves; nothing where it cannot be tried

STARTS = (0.7, -0.7, 2.3, -2.3, 4.6, -4.6)  # logarithms of the factors that a fit begins with, too
MOST_STEPS = 14
CONVERGED = 1e-13  # of a number
WIDTH = 1e-6  # of a number, by which its slope is measured
NEARBY = (1, -1, 2, -2, 3, -3)


def fitted(value: float, left: Left, enough: float) -> tuple[float, float] | None:
    """The number that leaves least, beginning with the one given, and the size of what it leaves."""
    best = _least((value, -value, 0.0, 1.0, *(value * math.exp(one) for one in STARTS)), left, enough)
    for _ in range(MOST_STEPS):
        if best is None:
            return None
        step = _step(best[0], left)
        tried = None if step is None else _least((best[0] + step, best[0] + 0.25 * step), left, 0.0)
        if tried is None or tried[1] >= best[1]:
            break
        moved, best = abs(tried[0] - best[0]), tried
        if moved <= CONVERGED * abs(best[0]):
            break
    return best


def whole(value: float, left: Left, enough: float) -> tuple[float, float] | None:
    """The whole number nearby that leaves least."""
    return _least((value + by for by in NEARBY), left, enough)


def among(values: Iterable[float], value: float, left: Left, enough: float) -> tuple[float, float] | None:
    """The one of some numbers that leaves least: too few elements to fit any other."""
    return _least((one for one in values if one != value), left, enough)


def _least(values: Iterable[float], left: Left, enough: float) -> tuple[float, float] | None:
    best: tuple[float, float] | None = None
    for value in dict.fromkeys(values):
        array = left(value)
        size = math.inf if array is None else float(np.linalg.norm(array))
        if math.isfinite(size) and (best is None or size < best[1]):
            best = value, size
        if best is not None and best[1] <= enough:
            break
    return best


def _step(now: float, left: Left) -> float | None:
    width = WIDTH * abs(now) or WIDTH
    here, beside = left(now), left(now + width)
    if here is None or beside is None:
        return None
    slope = (beside - here).reshape(-1) / width
    square = float(slope @ slope)
    return -float(slope @ here.reshape(-1)) / square if square > 0 and math.isfinite(square) else None
