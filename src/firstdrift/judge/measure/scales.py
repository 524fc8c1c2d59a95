"""The error of every row, column and element of a tensor, each for the size of what it sits on.

Rounding errors are as large as the numbers around them: those of the row, as of a token or a sample, and those of the
column, as of a channel. So an element's scale is a factor of its row times a factor of its column, fitted to the
logarithms, of which no single number moves the mean by much; or the element's own size, where that is more. A large
element, row or channel excuses itself, and nothing beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import wide
from ...core.traces import Array
from ...kernels.profiles import weighed

FEWEST = 8  # numbers of which the size of a row or column is known
SPARSE = 0.25  # of a row, fewer numbers that are not zero do not tell its size: what was cut off may have been large
SAMPLE = 64  # numbers of a row or column that are looked at for its size
ROUNDS = 4  # of fitting factors to rows and columns in turn
TWO_SIZES = 8.0  # by which the logarithm of no number is above the mean of its row's: that of a mask's fill is
NORMAL = 0.635  # by which the mean logarithm of normal numbers is below that of their root mean square
PART = 4.0  # times the error of a whole tensor, that of a part may be: noise scatters
SHORT = 2.0  # by which this is more for parts of n numbers, times 1/sqrt(n): so does the size of these few
ROW, NUMBER = 3.0, 8.0  # times the usual error of a tensor, those of a row or column and of an element may be
CLEAR = 1.0  # roundings: no operation is closer than this in the root mean square of a row or column
NEIGHBOURS = 2.0  # roundings that two neighbouring numbers are apart
ELEMENT = 16.0  # times the error of its row or column, that of an element may be

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Parts:
    """Relative errors of the usual row and of the worst row, column and element, and which these are."""

    usual: float
    row: float
    column: float
    element: float
    at: tuple[int, int, int, int]  # the worst row, the worst column, the worst element
    shape: tuple[int, int]  # rows and columns


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a tensor, its relative error, and what noise explains of that."""

    where: str
    error: float
    limit: float

    @property
    def excess(self) -> float:
        """By how much it is more than noise explains."""
        return self.error / self.limit if self.limit else np.inf if self.error else 0.0


def parts_of(expected: Array, found: Array, *, least: float) -> Parts | None:
    """How far two tensors are apart, part by part, where both are finite; None where there are no floats.

    No scale is less than `least` times the root mean square of the whole tensor. The usual row is the median where rows
    are long enough to be judged alone.
    """
    if expected.shape != found.shape or not expected.size or not (_is_float(expected) and _is_float(found)):
        return None
    _, width = matrix_of(expected.shape)
    reference, candidate = expected.reshape(-1, width), found.reshape(-1, width)
    rows, columns, element, at = weighed(reference, candidate, *scales_of(reference, least))
    usual = float(np.median(rows) if len(columns) >= FEWEST else np.mean(rows))
    row, column = int(np.argmax(rows)), int(np.argmax(columns))
    return Parts(
        sqrt(usual),
        sqrt(rows[row]),
        sqrt(columns[column]),
        sqrt(element),
        (row, column, *at),
        (len(rows), len(columns)),
    )


def is_clear(parts: Parts, unit: float) -> bool:
    """Whether two tensors are as close as any two that were rounded once, in every row, column and element."""
    return max(parts.row, parts.column, parts.usual) <= CLEAR * unit and parts.element <= NEIGHBOURS * unit


def least_part(parts: Parts, unit: float, limit: float, most: float = np.inf) -> Part:
    """The part whose error is the most beyond a limit for the usual row, or beyond what that row shows: who computes
    all else to the last digit has made no row or element worse by rounding. A usual row excuses no others by more than
    `most`, however far it is off itself."""
    usual = min(parts.usual, most)
    row, column = (max(unit, ROW * (1 + SHORT / sqrt(length)) * usual) for length in parts.shape[::-1])
    return _worst(parts, limit, row, column, max(NEIGHBOURS * unit, NUMBER * usual))


def worst_of(parts: Parts, limit: float) -> Part:
    """The part whose error is the most beyond what noise explains of a whole tensor."""
    row, column = (scattered(limit, length) for length in parts.shape[::-1])
    return _worst(parts, limit, row, column, ELEMENT * limit)


def _worst(parts: Parts, usual: float, row: float, column: float, element: float) -> Part:
    """The part that is the furthest beyond its limit; rows and columns count where they are long enough."""
    height, width = parts.shape
    found = [Part("most rows" if width >= FEWEST else "the whole", parts.usual, usual)]
    if width >= FEWEST:
        found.append(Part(f"row {parts.at[0]}", parts.row, row))
    if height >= FEWEST:
        found.append(Part(f"column {parts.at[1]}", parts.column, column))
    found.append(Part(f"element {parts.at[2]}, {parts.at[3]}", parts.element, element))
    return max(found, key=lambda part: part.excess)


def scattered(limit: float, length: int) -> float:
    """What noise explains of a part of so many numbers, where it explains `limit` of the whole."""
    return PART * (1 + SHORT / sqrt(length)) * limit


def scales_of(matrix: Array, least: float) -> tuple[Floats, Floats]:
    """The squared scales of rows and columns, whose products are those of elements."""
    some_rows, some_columns = (_spread(size) for size in matrix.shape)
    logs = _logs(matrix[some_rows][:, some_columns])
    with np.errstate(all="ignore"):
        return _fitted(matrix, logs, some_rows, some_columns, least)


def _fitted(
    matrix: Array, logs: Floats, some_rows: NDArray[np.int64], some_columns: NDArray[np.int64], least: float
) -> tuple[Floats, Floats]:
    middle = float(np.nanmean(logs)) if np.isfinite(logs).any() else 0.0
    of_rows, of_columns = np.zeros(len(some_rows)), _medians(logs - middle)
    for _ in range(ROUNDS):
        of_rows = _means(logs - middle - of_columns)
        of_columns = _means((logs - middle).T - of_rows)
    every_row = _means(_logs(matrix[:, some_columns]) - middle - of_columns)
    every_column = _means(_logs(matrix[some_rows]).T - middle - of_rows)
    spread = NORMAL if matrix.size >= FEWEST else 0.0  # of one number, the logarithm is no mean
    rows, columns = np.exp(2 * (every_row + middle + spread)), np.exp(2 * every_column)
    sample = np.exp(2 * logs)
    mean = float(np.nanmean(sample)) * np.isfinite(logs).mean() if np.isfinite(logs).any() else 0.0
    if np.isneginf(every_row).any() or np.isneginf(every_column).any():
        mean = 0.0  # of what masks are filled with, and of nothing else
    typical = float(np.median(columns)) or 1.0
    return np.maximum(rows, mean * least**2 / typical), columns


def _medians(logs: Floats) -> Floats:
    """Where the columns' logarithms begin: one that is large in every row is no fill of some of them."""
    some = np.isfinite(logs).any(axis=0)
    found = np.zeros(logs.shape[1])
    found[some] = np.nanmedian(logs[:, some], axis=0)
    return found


def _means(logs: Floats) -> Floats:
    """The mean of each row's logarithms; that of all, 0, where too few of its numbers are not zero; none, minus
    infinity, where its numbers are of two sizes, as beside a mask's fill: then each has its own alone."""
    known = np.isfinite(logs)
    counts = known.sum(axis=1)
    means = np.where(known, logs, 0.0).sum(axis=1) / np.maximum(counts, 1)
    apart = (np.where(known, logs - means[:, None], 0.0) > TWO_SIZES).any(axis=1)
    enough = counts >= max(FEWEST, SPARSE * logs.shape[1])
    return np.where(apart, -np.inf, np.where(enough, means, 0.0))


def _logs(matrix: Array) -> Floats:
    with np.errstate(all="ignore"):
        logs = np.log(np.abs(wide(matrix)))
    return np.where(np.isfinite(logs), logs, np.nan)


def _spread(size: int) -> NDArray[np.int64]:
    """Evenly spread positions, at most SAMPLE of them."""
    return np.unique(np.linspace(0, size - 1, min(size, SAMPLE)).astype(np.int64))


def matrix_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor: a row is the last axis, with those before it while that is too short to be judged
    alone."""
    width = 1
    for size in reversed(shape):
        if width >= FEWEST:
            break
        width *= size
    return prod(shape) // max(1, width), width


def _is_float(array: Array) -> bool:
    return array.dtype.kind in "fVc"
