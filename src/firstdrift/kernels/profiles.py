"""Squared errors for the scales of their rows and columns: native where that was compiled, else by numpy.

The ratios are the same bits on both ways, and so is the largest; sums of them differ in their last bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .pieces import Array

native: ModuleType | None
try:
    native = import_module(".profile", __package__)
except ImportError:  # not compiled here
    native = None

AT_ONCE = 1 << 16  # elements that are measured together

Floats = NDArray[np.float64]


class Weighed(NamedTuple):
    """The mean ratio of every row and every column, the largest of all, and where that is."""

    rows: Floats
    columns: Floats
    element: float
    at: tuple[int, int]


def weighed(ours: Array, theirs: Array, of_rows: Floats, of_columns: Floats) -> Weighed:
    """The squared error of every number of a matrix over its scale: of its row times of its column, or its own square
    where that is more. What is not finite on either side has no error; beyond what can be squared, nothing is clear."""
    if native is not None and ours.dtype == theirs.dtype and ours.dtype in (np.float32, np.float64):
        return _by_native(
            native, *(np.require(one, requirements=("C", "A")) for one in (ours, theirs, of_rows, of_columns))
        )
    rows, columns, element, at = np.zeros(len(ours)), np.zeros(ours.shape[1]), 0.0, (0, 0)
    for part, errors, squares in _blocks(ours, theirs):
        with np.errstate(all="ignore"):
            scale = np.maximum(np.multiply.outer(of_rows[part], of_columns), squares)
            ratio = np.where(errors > 0, errors / scale, 0.0)
            ratio = np.where(np.isnan(ratio), np.inf, ratio)
            rows[part] = ratio.mean(axis=1)
            columns += ratio.sum(axis=0)
        if (most := float(ratio.max())) > element:
            row, column = divmod(int(ratio.argmax()), ours.shape[1])
            element, at = most, (part.start + row, column)
    return Weighed(rows, columns / len(ours), element, at)


def _by_native(kernel: ModuleType, ours: Array, theirs: Array, of_rows: Floats, of_columns: Floats) -> Weighed:
    rows, columns = np.empty(ours.shape[0]), np.empty(ours.shape[1])
    single = ours.dtype == np.float32
    element, at = kernel.weighed(rows, columns, ours, theirs, of_rows, of_columns, single)
    row, column = divmod(int(at), ours.shape[1])
    return Weighed(rows, columns, float(element), (row, column))


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


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
