"""Squared errors for the scales of their rows and columns: native where that was compiled, else by numpy.

The ratios are the same bits on both ways, and so is the largest; sums of them differ in their last bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .pieces import Array, compiled

native = compiled("profile")

AT_ONCE = 1 << 16  # elements that are measured together

Floats = NDArray[np.float64]


class Weighed(NamedTuple):
    """The mean ratio of every row and every column, the largest of all, and where that is."""

    rows: Floats
    columns: Floats
    element: float
    at: tuple[int, int]


def weighed(reference: Array, candidate: Array, of_rows: Floats, of_columns: Floats) -> Weighed:
    """The squared error of every number of a matrix over its scale: of its row times of its column, or its own square
    where that is more. What is not finite on either side has no error; beyond what can be squared, nothing is clear."""
    if native is not None and reference.dtype == candidate.dtype and reference.dtype in (np.float32, np.float64):
        return _by_native(
            native,
            *(np.require(array, requirements=("C", "A")) for array in (reference, candidate, of_rows, of_columns)),
        )
    rows, columns, element, at = np.zeros(len(reference)), np.zeros(reference.shape[1]), 0.0, (0, 0)
    for part, errors, squares in _blocks(reference, candidate):
        with np.errstate(all="ignore"):
            scale = np.maximum(np.multiply.outer(of_rows[part], of_columns), squares)
            ratio = np.where(errors > 0, errors / scale, 0.0)
            ratio = np.where(np.isnan(ratio), np.inf, ratio)
            rows[part] = ratio.mean(axis=1)
            columns += ratio.sum(axis=0)
        if (most := float(ratio.max())) > element:
            row, column = divmod(int(ratio.argmax()), reference.shape[1])
            element, at = most, (part.start + row, column)
    return Weighed(rows, columns / len(reference), element, at)


def _by_native(kernel: ModuleType, reference: Array, candidate: Array, of_rows: Floats, of_columns: Floats) -> Weighed:
    rows, columns = np.empty(reference.shape[0]), np.empty(reference.shape[1])
    single = reference.dtype == np.float32
    element, at = kernel.weighed(rows, columns, reference, candidate, of_rows, of_columns, single)
    row, column = divmod(int(at), reference.shape[1])
    return Weighed(rows, columns, float(element), (row, column))


def _blocks(reference: Array, candidate: Array) -> Iterator[tuple[slice, Floats, Floats]]:
    """Rows of both, a few at a time: which, the squared errors, and the squares of the first."""
    step = max(1, AT_ONCE // max(1, reference.shape[1]))
    for start in range(0, len(reference), step):
        part = slice(start, start + step)
        a, b = _wide(reference[part]), _wide(candidate[part])
        with np.errstate(all="ignore"):
            finite = np.isfinite(a) & np.isfinite(b)
            errors, squares = np.abs(b - a) ** 2, np.abs(a) ** 2
        yield part, np.where(finite, errors, 0.0), np.where(finite, squares, 0.0)


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
