"""Which numbers make a difference vanish, by steps of Gauss and Newton."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch

from ...causes.variants import Floats

STARTS = (0.7, -0.7, 2.3, -2.3, 4.6, -4.6)  # logarithms of the factors that a fit begins with, too
MOST_STEPS = 14
CONVERGED = 1e-13  # of a number
WIDTH = 1e-6  # of a number, by which its slope is measured

Left = Callable[[float], "Floats | None"]  # what a number leaves; nothing where it cannot be tried


def fitted(value: float, left: Left) -> tuple[float, float] | None:
    """The number that leaves least, beginning with the one given, and the size of what it leaves."""
    best = _least((value, -value, 0.0, 1.0, *(value * math.exp(one) for one in STARTS)), left)
    for _ in range(MOST_STEPS):
        if best is None:
            return None
        step = _step(best[0], left)
        tried = None if step is None else _least((best[0] + step, best[0] + 0.25 * step), left)
        if tried is None or tried[1] >= best[1]:
            break
        moved, best = abs(tried[0] - best[0]), tried
        if moved <= CONVERGED * abs(best[0]):
            break
    return best


def _least(values: Iterable[float], left: Left) -> tuple[float, float] | None:
    tried = ((value, left(value)) for value in dict.fromkeys(values))
    sizes = [(value, float(np.linalg.norm(array))) for value, array in tried if array is not None]
    return min((one for one in sizes if math.isfinite(one[1])), key=lambda one: one[1], default=None)


def _step(now: float, left: Left) -> float | None:
    width = WIDTH * abs(now) or WIDTH
    here, beside = left(now), left(now + width)
    if here is None or beside is None:
        return None
    slope = (beside - here).reshape(-1) / width
    square = float(slope @ slope)
    return -float(slope @ here.reshape(-1)) / square if square > 0 and math.isfinite(square) else None


def fitted_table(
    table: torch.Tensor, left: Callable[[torch.Tensor], Floats | None]
) -> tuple[torch.Tensor, float] | None:
    """The table that leaves least, beginning with the one given, and the size of what it leaves."""
    now, here = table.double(), left(table)
    for _ in range(MOST_STEPS):
        slopes = None if here is None else _slopes(now, here, left)
        if slopes is None or here is None or not np.isfinite(slopes).all():
            return None
        step = np.linalg.lstsq(slopes, -here.reshape(-1), rcond=None)[0]
        before = float(np.linalg.norm(here))
        now = now + torch.from_numpy(step).reshape(now.shape)
        here = left(now.to(table.dtype))
        if here is None or not float(np.linalg.norm(here)) <= 2 * before:
            return None
        if float(np.linalg.norm(step)) <= CONVERGED * float(now.norm()):
            break
    return None if here is None else (now.to(table.dtype), float(np.linalg.norm(here)))


def _slopes(now: torch.Tensor, here: Floats, left: Callable[[torch.Tensor], Floats | None]) -> Floats | None:
    columns = []
    for at in range(now.numel()):
        beside = now.clone()
        width = WIDTH * (abs(float(beside.view(-1)[at])) or 1.0)
        beside.view(-1)[at] += width
        there = left(beside)
        if there is None:
            return None
        columns.append((there - here).reshape(-1) / width)
    return np.stack(columns, 1)
