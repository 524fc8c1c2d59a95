"""How a tensor of any shape and strides is walked: as a matrix, in bands, in pieces of bounded size.

The matrix view of a tensor has its last axes as columns: axes of length 1 are dropped, then trailing axes are
merged until a row is at least 64 wide, but the first axis stays the rows. So a row is a token, a sample or a
channel's plane, and a column is a channel or a position. It is the tensor reshaped in C order: row r starts
at flat index r * columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

RUN = 64  # elements summed together; a block is RUN x RUN
PANEL = 64  # rows summed together
BAND_SIZE = 1 << 20  # elements the native kernel gives a thread at least
MAX_COLUMNS = 1 << 16  # wider matrices have no column sums
SAMPLED_SIZE = 1 << 20  # tensors from this size on are sampled for the ULP histogram
SAMPLE_STEP = 8
PIECE_SIZE = 3 << 15  # elements of a piece at most: bounds the memory of a pass
LEAST_REFERENCE = 1e-12  # a difference is relative to the reference, or to this where that is smaller
CHUNK = 1 << 16  # elements of one tensor summed together for its statistics


def compiled(name: str) -> ModuleType | None:
    """A native twin; None where it was not compiled."""
    try:
        return import_module(f".{name}", __package__)
    except ImportError:
        return None


def components(array: Array) -> Array:
    """The tensor as real numbers: complex ones gain a last axis of length 2."""
    if array.dtype.kind != "c":
        return array
    parts = array.real
    return np.lib.stride_tricks.as_strided(parts, (*array.shape, 2), (*array.strides, parts.itemsize), writeable=False)


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of the matrix view."""
    size = math.prod(shape)
    if not size:
        return 0, 0
    axes = [n for n in shape if n != 1] or [1]
    columns = axes.pop()
    while len(axes) > 1 and columns < RUN:
        columns *= axes.pop()
    return size // columns, columns


class Span(NamedTuple):
    """Half-open ranges of rows and columns."""

    row: int
    stop_row: int
    column: int
    stop_column: int


class Matrix:
    """A tensor's matrix view that never copies more than the piece asked for."""

    def __init__(self, array: Array) -> None:
        self.rows, self.columns = matrix_shape(array.shape)
        self._dtype = array.dtype.newbyteorder("=")
        axes = [n for n in array.shape if n != 1]
        self._view: Array | None = None
        self._array = array
        if array.flags.c_contiguous or len(axes) < 2:
            self._view = array.reshape(self.rows, self.columns)
        elif axes == [self.rows, self.columns]:
            self._view = array.squeeze()
        else:
            self._array = array.squeeze()
            self._leads = self._array.shape[: _leading_axes(self._array.shape, self.rows)]

    def piece(self, span: Span) -> Array:
        """The rows and columns of a span, in the machine's byte order."""
        row, stop_row, column, stop_column = span
        if self._view is not None:
            return self._view[row:stop_row, column:stop_column].astype(self._dtype, copy=False)
        out = np.empty((stop_row - row, stop_column - column), self._dtype)
        for i, r in enumerate(range(row, stop_row)):
            out[i] = self._array[np.unravel_index(r, self._leads)].flat[column:stop_column]
        return out


def _leading_axes(shape: tuple[int, ...], rows: int) -> int:
    count, product = 0, 1
    while product < rows:
        product *= shape[count]
        count += 1
    return count


def panel_groups(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Row ranges of a matrix: several whole panels while they fit a piece, a last partial one by itself."""
    step = PANEL * max(1, PIECE_SIZE // (PANEL * max(1, columns)))
    row = 0
    while row < rows:
        left = rows - row
        take = min(step, left if left < PANEL else left // PANEL * PANEL)
        yield row, row + take
        row += take


def strips(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Column ranges of so many rows that make pieces of bounded size, whole runs each but the last."""
    width = max(RUN, PIECE_SIZE // rows // RUN * RUN)
    for column in range(0, columns, width):
        yield column, min(column + width, columns)


@lru_cache(maxsize=64)
def sampled(start: int, rows: int, width: int) -> Array:
    """Which elements (of the flattened piece) are sampled: each eighth run, another one in each row."""
    return np.flatnonzero((start + np.arange(rows)[:, None] + np.arange(width) // RUN) % SAMPLE_STEP == 0)


def in_memory_order(array: Array) -> Array:
    """The same elements with axes sorted as they lie in memory: transposed tensors read as contiguous."""
    if array.flags.c_contiguous:
        return array
    return array.transpose(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))


def flat_pieces(array: Array) -> Iterator[Array]:
    """The elements in C order, one bounded 1-D piece after the other."""
    flat: Any = array.reshape(-1) if array.flags.c_contiguous else array.flat
    dtype = array.dtype.newbyteorder("=")
    for start in range(0, array.size, CHUNK):
        yield flat[start : start + CHUNK].astype(dtype, copy=False)
