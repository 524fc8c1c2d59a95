"""The error of every row, column and element of a tensor, each for the size of what it sits on.

Rounding errors are as large as the numbers around them: those of the row, as of a token or a sample, and those of the
column, as of a channel. So an element's scale is a factor of its row times a factor of its column, fitted to the
logarithms, of which no single number moves the mean by much; or the element's own size, where that is more. A large
element, row or channel excuses itself, and nothing beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from ..traces import Array

FEWEST = 8  # numbers of which the size of a row or column is known
SPARSE = 0.25  # of a row, fewer numbers that are not zero do not tell its size: what was cut off may have been large
SAMPLE = 64  # numbers of a row or column that are looked at for its size
ROUNDS = 4  # of fitting factors to rows and columns in turn
AT_ONCE = 1 << 16  # elements that are measured together
NORMAL = 0.635  # by which the mean logarithm of normal numbers is below that of their root mean square
PART = 4.0  # times the error of a whole tensor, that of a part may be: noise scatters
SHORT = 2.0  # by which this is more for parts of n numbers, times 1/sqrt(n): so does the size of these few
NOISIER = 4.0  # times the noise of one correct computation, that of another may be
ELEMENT = 16.0  # times the error of its row or column, that of an element may be

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Profile:
    """The relative error of every row, every column and the worst element, as mean squares."""

    rows: Floats
    columns: Floats
    element: float
    at: tuple[int, int]  # the worst element


@dataclass(frozen=True, slots=True)
class Parts:
    """What a profile comes to: relative errors of the usual row, the worst row, column and element, and which."""

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


def profile_of(expected: Array, found: Array, *, least: float) -> Profile | None:
    """How far two tensors are apart, part by part, where both are finite; None where there are no floats.

    No scale is less than `least` times the root mean square of the whole tensor.
    """
    if expected.shape != found.shape or not expected.size or not (_is_float(expected) and _is_float(found)):
        return None
    _, width = matrix_of(expected.shape)
    ours, theirs = expected.reshape(-1, width), found.reshape(-1, width)
    of_rows, of_columns = scales_of(ours, least)
    rows, columns, element, at = np.zeros(len(ours)), np.zeros(width), 0.0, (0, 0)
    for part, errors, squares in _blocks(ours, theirs):
        scale = np.maximum(np.multiply.outer(of_rows[part], of_columns), squares)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(errors > 0, errors / scale, 0.0)
        rows[part] = ratio.mean(axis=1)
        columns += ratio.sum(axis=0)
        if (most := float(ratio.max())) > element:
            row, column = divmod(int(ratio.argmax()), width)
            element, at = most, (part.start + row, column)
    return Profile(rows, columns / len(ours), element, at)


def parts_of(profile: Profile) -> Parts:
    """The worst parts, and the usual row: the median where rows are long enough to be judged alone."""
    rows, columns = profile.rows, profile.columns
    usual = float(np.median(rows) if len(columns) >= FEWEST else np.mean(rows))
    row, column = int(np.argmax(rows)), int(np.argmax(columns))
    return Parts(
        sqrt(usual), sqrt(rows[row]), sqrt(columns[column]), sqrt(profile.element), (row, column, *profile.at),
        (len(rows), len(columns)),
    )  # fmt: skip


def worst_of(parts: Parts, limit: float) -> Part:
    """The part whose error is the most beyond what noise explains of a whole tensor."""
    height, width = parts.shape
    found = [Part("most rows" if width >= FEWEST else "the whole", parts.usual, limit)]
    if width >= FEWEST:
        found.append(Part(f"row {parts.at[0]}", parts.row, scattered(limit, width)))
    if height >= FEWEST:
        found.append(Part(f"column {parts.at[1]}", parts.column, scattered(limit, height)))
    found.append(Part(f"element {parts.at[2]}, {parts.at[3]}", parts.element, ELEMENT * limit))
    return max(found, key=lambda part: part.excess)


def worst_part(error: Profile, noises: Sequence[Profile], floor: float) -> Part:
    """The part of a tensor whose error is the most beyond noise: that which correct computations show in the same part,
    or `floor` where that is more."""
    if not noises:
        return worst_of(parts_of(error), floor)
    rows, columns = (np.max([getattr(one, kind) for one in noises], axis=0) for kind in ("rows", "columns"))
    height, width = len(error.rows), len(error.columns)
    usual, least = (np.median, FEWEST) if width >= FEWEST else (np.mean, 0)
    found = [
        Part("most rows" if least else "the whole", sqrt(usual(error.rows)), max(floor, NOISIER * sqrt(usual(rows))))
    ]
    limits = _limits(rows, floor, width), _limits(columns, floor, height)
    if width >= FEWEST:
        found.append(_worst("row", error.rows, limits[0]))
    if height >= FEWEST:
        found.append(_worst("column", error.columns, limits[1]))
    row, column = error.at
    allowed = max(floor, float(max(limits[0][row], limits[1][column])) / PART)
    found.append(Part(f"element {row}, {column}", sqrt(error.element), ELEMENT * allowed))
    return max(found, key=lambda part: part.excess)


def scattered(limit: float, length: int) -> float:
    """What noise explains of a part of so many numbers, where it explains `limit` of the whole."""
    return PART * (1 + SHORT / sqrt(length)) * limit


def _limits(noise: Floats, floor: float, length: int) -> Floats:
    least = max(scattered(floor, length), NOISIER * sqrt(np.median(noise)))  # a part's noise may be small by chance
    limits: Floats = np.maximum(least, NOISIER * np.sqrt(noise))
    return limits


def _worst(kind: str, errors: Floats, limits: Floats) -> Part:
    with np.errstate(divide="ignore", invalid="ignore"):
        at = int(np.argmax(np.where(errors > 0, np.sqrt(errors) / limits, 0.0)))
    return Part(f"{kind} {at}", sqrt(errors[at]), float(limits[at]))


def scales_of(matrix: Array, least: float) -> tuple[Floats, Floats]:
    """The squared scales of rows and columns, whose products are those of elements."""
    some_rows, some_columns = (_spread(size) for size in matrix.shape)
    logs = _logs(matrix[some_rows][:, some_columns])
    of_rows, of_columns = np.zeros(len(some_rows)), np.zeros(len(some_columns))
    middle = float(np.nanmean(logs)) if np.isfinite(logs).any() else 0.0
    for _ in range(ROUNDS):
        of_rows = _means(logs - middle - of_columns)
        of_columns = _means((logs - middle).T - of_rows)
    every_row = _means(_logs(matrix[:, some_columns]) - middle - of_columns)
    every_column = _means(_logs(matrix[some_rows]).T - middle - of_rows)
    rows, columns = np.exp(2 * (every_row + middle + NORMAL)), np.exp(2 * every_column)
    sample = np.exp(2 * logs)
    mean = float(np.nanmean(sample)) * np.isfinite(logs).mean() if np.isfinite(logs).any() else 0.0
    typical = float(np.median(columns)) or 1.0
    return np.maximum(rows, mean * least**2 / typical), columns


def _means(logs: Floats) -> Floats:
    """The mean of each row's logarithms; that of all, 0, where too few of its numbers are not zero."""
    known = np.isfinite(logs)
    counts = known.sum(axis=1)
    sums = np.where(known, logs, 0.0).sum(axis=1)
    return np.where(counts >= max(FEWEST, SPARSE * logs.shape[1]), sums / np.maximum(counts, 1), 0.0)


def _logs(matrix: Array) -> Floats:
    with np.errstate(all="ignore"):
        logs = np.log(np.abs(_wide(matrix)))
    return np.where(np.isfinite(logs), logs, np.nan)


def _spread(size: int) -> NDArray[np.int64]:
    """Evenly spread positions, at most SAMPLE of them."""
    return np.unique(np.linspace(0, size - 1, min(size, SAMPLE)).astype(np.int64))


def _blocks(ours: Array, theirs: Array) -> Iterator[tuple[slice, Floats, Floats]]:
    """Rows of both, a few at a time: which, the squared errors, and the squares of the first."""
    step = max(1, AT_ONCE // max(1, ours.shape[1]))
    for start in range(0, len(ours), step):
        part = slice(start, start + step)
        a, b = _wide(ours[part]), _wide(theirs[part])
        with np.errstate(all="ignore"):
            finite = np.isfinite(a) & np.isfinite(b)
            errors, squares = np.abs(b - a) ** 2, np.abs(a) ** 2
        yield part, np.where(finite, errors, 0.0), np.where(finite, squares, 0.0)


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


def _wide(array: Array) -> NDArray[np.float64]:
    wide: NDArray[np.float64] = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return wide
