"""Weights on the grid of an integer format, and quantised weights whose zero point is another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..evidence import Evidence
from ..one_program.agreement import Floats, distance, floats, limit
from ..relations.hypotheses import Finding, Hypothesis
from .weight_layouts import is_weight

FEWEST = 4  # numbers in a group
CHANCE = 1e-4  # how likely whole steps may be by accident
MOST_STEPS = 255  # a zero point of eight bits
ON_GRID, AT_MOST = 1e-2, 0.2  # of a step: what float32 leaves, and what any rounding of weights may leave
SCREENED, NUMBERS = 64, 256  # groups, and numbers of each, on which steps are sought
TOLD = 16  # different numbers of steps that are told


def other_zero_point(evidence: Evidence) -> Iterator[Finding]:
    """Weights that differ by one number per tensor, row, column or group of these, which is a whole number of the
    steps that the reference's weights there are apart."""
    if not is_weight(evidence) or not np.isfinite(evidence.found).all() or not np.isfinite(evidence.expected).all():
        return
    expected, found = floats(evidence.expected), floats(evidence.found)
    for name, axis, size in _groupings(found - expected, _slack(evidence, expected, found)):
        reference, candidate = (_lines(array, axis).reshape(-1, size) for array in (expected, found))
        moved = (candidate - reference).mean(1, keepdims=True)
        counts = _steps(reference, moved, evidence)
        if counts is None:
            continue
        lines = _lines(expected, axis)
        predicted = _restored((reference + moved).reshape(lines.shape), axis, expected.shape)
        several = sorted({int(count) for count in counts if count})
        shown = ", ".join(map(str, several[:TOLD])) if len(several) <= 4 else f"{several[0]} to {several[-1]}"
        sentence = f"the zero point is off by {shown} step{'s' if several != [1] else ''} per {name}"
        steps = several[0] if len(several) == 1 else several[:TOLD]
        yield Finding("zero-point", sentence, predicted, len(several), {"steps": steps, "per": name})
        return


def _slack(evidence: Evidence, expected: Floats, found: Floats) -> float:
    """What rounding leaves of a difference that is one number."""
    largest = float(np.abs(found - expected).max())
    return max(1e-3 * largest, limit(evidence) * max(float(np.abs(expected).max()), float(np.abs(found).max())))


def _groupings(difference: Floats, slack: float) -> Iterator[tuple[str, int | None, int]]:
    """Ways in which a difference is one number per group: a name, the axis along which groups lie (None: rows as they
    are stored), and the size of a group."""
    if float(np.abs(difference).max()) <= 2 * slack:
        return
    if float(np.ptp(difference)) <= slack:
        yield "tensor", None, difference.size
        return
    names: list[tuple[str, int | None]] = [("row", None)]
    names += [("column" if axis == 0 else f"line of axis {axis}", axis) for axis in range(difference.ndim - 1)]
    for name, axis in names if difference.ndim > 1 else ():
        lines = _lines(difference, axis)
        if _group_size(lines[:SCREENED], slack) >= FEWEST and (size := _group_size(lines, slack)) >= FEWEST:
            yield name if size == lines.shape[1] else f"group of {size} of a {name}", axis, size


def _group_size(lines: Floats, slack: float) -> int:
    """The largest groups of equal size, along lines, within which no line changes."""
    breaks = np.flatnonzero((np.abs(np.diff(lines, axis=1)) > slack).any(0)) + 1
    return int(np.gcd.reduce(np.append(breaks, lines.shape[1])))


def _lines(array: Floats, axis: int | None) -> Floats:
    """An array as rows in which groups lie one after the other."""
    if axis is None:
        return array.reshape(len(array) if array.ndim > 1 else 1, -1)
    return np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])


def _restored(lines: Floats, axis: int | None, shape: tuple[int, ...]) -> Floats:
    if axis is None:
        return lines.reshape(shape)
    rest = [size for number, size in enumerate(shape) if number != axis]
    return np.moveaxis(lines.reshape(*rest, shape[axis]), -1, axis)


def _steps(reference: Floats, moved: Floats, evidence: Evidence) -> list[int] | None:
    """By how many steps some groups are moved, where the numbers of each lie whole steps apart; else None.

    The step of a group is the longest of which both the move and all distances within it are whole multiples.
    """
    groups = np.unique(np.linspace(0, len(reference) - 1, min(SCREENED, len(reference))).astype(np.intp))
    some, by = reference[groups, :NUMBERS], moved[groups]
    apart = np.diff(np.sort(some, 1), axis=1)
    noise = limit(evidence) * np.abs(some).max(1, keepdims=True)
    still = np.abs(by) <= np.maximum(2 * noise, 1e-3 * np.abs(moved).max())
    counts: list[int] = []
    surprise = 0.0  # the logarithm of how unlikely all this is by accident
    for gaps, move, rounding, stays in zip(apart, by[:, 0], noise[:, 0], still[:, 0], strict=True):
        if stays:
            continue
        sizes = abs(move) / np.arange(1, MOST_STEPS + 1)
        whole = gaps[gaps > 2 * rounding + 1e-6 * abs(move)] / sizes[:, None]
        allowed = np.clip(4 * rounding / sizes, ON_GRID, AT_MOST)
        steps = np.round(whole)
        refined = (steps * whole).sum(1) / np.maximum((steps * steps).sum(1), 1)  # the move is rounded as well
        near = np.abs(refined - 1) <= np.clip(2 * rounding / abs(move), ON_GRID, AT_MOST)
        off = np.abs(whole / np.where(near, refined, 1.0)[:, None] - steps)
        fits = np.flatnonzero(near & (off <= allowed[:, None]).all(1))
        if not len(fits):
            return None
        count = int(fits[0]) + 1
        surprise -= whole.shape[1] * math.log(2 * allowed[fits[0]]) + math.log(count)
        counts.append(count if move > 0 else -count)
    return counts if counts and surprise >= -math.log(CHANCE) else None


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
    for name, reference, candidate in _grouped(expected, found):
        grid = grid_of(candidate[:SCREENED])
        if grid is None or distance(grid.nearest(reference[:SCREENED]), candidate[:SCREENED]) > 1e-3:
            continue
        if distance(grid.nearest(reference[:SCREENED]), reference[:SCREENED]) <= 1e-6:
            continue  # the reference lies on the same grid
        whole = grid_of(candidate, (grid.bits, grid.symmetric))
        if whole is None:
            continue
        predicted = _ungrouped(name, whole.nearest(reference), found.shape)
        plain = np.allclose(np.abs(candidate).max(1), np.abs(reference).max(1), rtol=1e-2)
        sentence = f"the weights lie on a grid of {whole.bits} bits, one step size per {name}"
        yield Finding(
            "quantisation", sentence, predicted, 0 if plain else len(candidate), {"bits": whole.bits, "per": name}
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
        reference, candidate = expected.reshape(shape), found.reshape(shape)
        if reference.shape[1] >= SMALLEST and reference.size >= 2 * SMALLEST:
            yield name, reference, candidate
        if name == "row" and len(found) >= SMALLEST:
            yield "column", expected.reshape(shape).T, found.reshape(shape).T


def _ungrouped(name: str, groups: Floats, shape: tuple[int, ...]) -> Floats:
    return (groups.T if name == "column" else groups).reshape(shape)


HYPOTHESES: tuple[Hypothesis, ...] = (quantised, other_zero_point)
