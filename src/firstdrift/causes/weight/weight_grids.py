"""Weights on the grid of an integer format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..agreement import Floats, distance, floats
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from . import weight_zero_points
from .weight_layouts import is_weight

GROUPS = (16, 32, 64, 128, 256)
LEVELS = {
    127: 8,
    128: 8,
    255: 8,
    254: 8,
    31: 6,
    63: 6,
    15: 5,
    16: 5,
    7: 4,
    8: 4,
    3: 3,
    1: 2,
}  # steps to the largest: bits
SPANS = {255: 8, 63: 6, 31: 5, 15: 4, 7: 3, 3: 2}  # steps from the smallest to the largest: bits
ON_GRID = 1e-2  # of a step: float32 arithmetic leaves less
SMALLEST = 8  # numbers in a group, below which a grid says nothing
SCREENED = 64  # groups looked at before all of them are
FEW = 256  # numbers of a group looked at before all of them are


@dataclass(frozen=True, slots=True)
class Grid:
    """A step and an origin for every group, and how many bits they stand for."""

    step: Floats
    origin: Floats
    bits: int
    symmetric: bool

    def nearest(self, values: Floats) -> Floats:
        """The points of the grid that are nearest."""
        return np.asarray(self.origin + self.step * np.round((values - self.origin) / self.step), np.float64)


def quantised(evidence: Evidence) -> Iterator[Finding]:
    """Weights that are whole multiples of a step, per tensor, row, column or group, and the nearest such."""
    if not is_weight(evidence) or not np.isfinite(evidence.found).all():
        return
    expected, found = floats(evidence.expected), floats(evidence.found)
    for name, ours, theirs in _grouped(expected, found):
        grid = grid_of(theirs[:SCREENED])
        if grid is None or distance(grid.nearest(ours[:SCREENED]), theirs[:SCREENED]) > 1e-3:
            continue
        if distance(grid.nearest(ours[:SCREENED]), ours[:SCREENED]) <= 1e-6:
            continue  # the reference lies on the same grid
        whole = grid_of(theirs, (grid.bits, grid.symmetric))
        if whole is None:
            continue
        predicted = _ungrouped(name, whole.nearest(ours), found.shape)
        plain = np.allclose(np.abs(theirs).max(1), np.abs(ours).max(1), rtol=1e-2)
        sentence = f"the weights lie on a grid of {whole.bits} bits, one step size per {name}"
        yield Finding(
            "quantisation", sentence, predicted, 0 if plain else len(theirs), {"bits": whole.bits, "per": name}
        )
        return


def grid_of(groups: Floats, known: tuple[int, bool] | None = None) -> Grid | None:
    """The grid on which every group lies, or None; of a known kind where there is one."""
    largest = np.abs(groups).max(1, keepdims=True)
    lowest, span = groups.min(1, keepdims=True), np.ptp(groups, axis=1, keepdims=True)
    kinds = [(largest, np.zeros_like(largest), count, bits, True) for count, bits in LEVELS.items()]
    kinds += [(span, lowest, count, bits, False) for count, bits in SPANS.items()]
    for size, origin, count, bits, symmetric in sorted(kinds, key=lambda kind: kind[2]):
        step = np.where(size > 0, size, 1.0) / count
        if (known is None or known == (bits, symmetric)) and all(
            _whole((part - origin) / step) for part in (groups[:, :FEW], groups)
        ):
            return Grid(step, origin, bits, symmetric)
    if groups.shape[1] < FEW or known not in (None, (8, False)):
        return None
    gap = _gaps(groups[:, : 16 * FEW])  # the ends of the range may lie anywhere
    return Grid(gap, lowest, 8, False) if gap is not None and _whole((groups - lowest) / gap) else None


def _whole(steps: Floats) -> bool:
    return bool(np.abs(steps - np.round(steps)).max() <= ON_GRID)


def _gaps(groups: Floats) -> Floats | None:
    """The smallest gap between numbers of each group, where all of them are whole multiples of it apart."""
    ordered = np.sort(groups, 1)
    gaps = np.diff(ordered, axis=1)
    tiny = 1e-6 * np.ptp(groups, axis=1, keepdims=True)
    smallest = np.where(gaps > tiny, gaps, np.inf).min(1, keepdims=True)
    with np.errstate(all="ignore"):
        steps = (groups - ordered[:, :1]) / smallest
    if not np.isfinite(steps).all() or np.abs(steps - np.round(steps)).max() > ON_GRID:
        return None
    return np.asarray(smallest, np.float64) if np.abs(steps).max() < 256 else None


def _grouped(expected: Floats, found: Floats) -> Iterator[tuple[str, Floats, Floats]]:
    """Both arrays as groups x numbers: the whole tensor, rows, columns, groups of a row."""
    shapes = [("tensor", (1, found.size))]
    if found.ndim >= 2:
        shapes.append(("row", (len(found), found.size // len(found))))
    shapes += [(f"group of {size}", (-1, size)) for size in reversed(GROUPS) if found.shape[-1] % size == 0]
    for name, shape in shapes:
        ours, theirs = expected.reshape(shape), found.reshape(shape)
        if ours.shape[1] >= SMALLEST and ours.size >= 2 * SMALLEST:
            yield name, ours, theirs
        if name == "row" and len(found) >= SMALLEST:
            yield "column", expected.reshape(shape).T, found.reshape(shape).T


def _ungrouped(name: str, groups: Floats, shape: tuple[int, ...]) -> Floats:
    return (groups.T if name == "column" else groups).reshape(shape)


HYPOTHESES: tuple[Hypothesis, ...] = (quantised, *weight_zero_points.HYPOTHESES)
