"""What a pass over a pair in plain numpy works on, and what accumulates while it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from . import floats
from .pieces import LEAST_REFERENCE, MAX_COLUMNS, PANEL, PIECE_SIZE, RUN, Array, Matrix
from .results import Number

NOWHERE = (-1.0, -1, -1)

_CHUNK = 1 << 12  # elements of a dot product: so few that no BLAS shares them among threads of its own


@dataclass(frozen=True, slots=True)
class Task:
    """What to measure, and how."""

    reference: Matrix
    candidate: Matrix
    integers: bool
    ulp_dtype: floats.DType | None  # in which ULPs are counted, of two float tensors
    sampled: bool
    full: bool
    scale: float


@dataclass(slots=True)
class Totals:
    """What accumulates over the pieces."""

    column_squares: Array | None
    column_missing: Array | None
    max_abs: Number
    sums: Array = field(default_factory=lambda: np.zeros(6))  # the first six of PieceSums
    ulp_counts: Array = field(default_factory=lambda: np.zeros(floats.BUCKETS, np.int64))
    max_abs_index: int = -1
    max_rel: float = 0.0
    mismatch_index: int = -1
    max_ulp: int = 0
    worst_row: tuple[float, int, int] = NOWHERE
    worst_block: tuple[float, int, int] = NOWHERE
    missing: int = 0
    differing: int = 0
    nan_reference: int = 0
    nan_candidate: int = 0
    inf_reference: int = 0
    inf_candidate: int = 0
    mismatches: int = 0
    sign_flips: int = 0

    @classmethod
    def of(cls, task: Task) -> Totals:
        """Nothing yet."""
        columns, summed = task.reference.columns, task.full and task.reference.columns <= MAX_COLUMNS
        return cls(
            column_squares=np.zeros(columns) if summed else None,
            column_missing=np.zeros(columns, np.int64) if summed else None,
            max_abs=0 if task.integers else 0.0,
        )

    def note_mismatch(self, index: int) -> None:
        self.mismatch_index = index if self.mismatch_index < 0 else min(index, self.mismatch_index)


class Workspace:
    """Memory for one piece after the other: to get new memory from the system costs more than the work in it."""

    def __init__(self, size: int) -> None:
        self._memory = np.empty(3 * min(size, PIECE_SIZE))

    def arrays(self, size: int) -> Array:
        """Three uninitialized arrays of that many elements."""
        arrays: Array = self._memory[: 3 * size].reshape(3, size)
        return arrays


class PieceSums(NamedTuple):
    """Sums over a piece: of the squares of reference, candidate and difference, of the product, of the difference and
    of the reference; of the squares of the difference in each row."""

    square_reference: float
    square_candidate: float
    square_difference: float
    dot: float
    difference: float
    reference: float
    rows: Array


@dataclass(slots=True)
class Piece:
    """Some rows and columns of both sides."""

    row: int
    column: int
    columns: int  # of the whole matrix
    reference: Array
    candidate: Array
    memory: Array
    missing: Array | None = None  # which positions are not compared, where some are not

    @property
    def squares(self) -> Array:
        """The squared differences, once measured."""
        squares: Array = self.memory[0].reshape(self.reference.shape)
        return squares

    @property
    def differences(self) -> Array:
        """Candidate less reference, once measured."""
        differences: Array = self.memory[1].reshape(self.reference.shape)
        return differences

    def gaps(self, itemsize: int) -> Array:
        """Memory for signed integers of that size."""
        gaps: Array = self.memory[2].view(f"i{itemsize}")[: self.reference.size]
        return gaps.reshape(self.reference.shape)

    def measure(self, scale: float) -> PieceSums:
        """Fill in differences and squares; sum."""
        a, b = self._widened(scale)
        square_reference, square_candidate, reference = _dot(a, a), _dot(b, b), float(a.sum())
        rows, square_difference, difference = self._subtracted()
        # 2ab = a² + b² - (a - b)² saves a pass where it loses no digits: of sides close to each other.
        dot = (square_reference + square_candidate - square_difference) / 2
        if not square_difference <= dot:
            dot = _dot(*self._widened(scale))
            self._subtracted()
        return PieceSums(square_reference, square_candidate, square_difference, dot, difference, reference, rows)

    def _widened(self, scale: float) -> Array:
        sides = self.memory[:2]
        self.squares[...], self.differences[...] = self.reference, self.candidate
        if scale != 1.0:
            sides *= scale
        return sides

    def _subtracted(self) -> tuple[Array, float, float]:
        a, b = self.memory[:2]
        np.subtract(b, a, out=b)
        np.square(b, out=a)
        rows = self.squares.sum(axis=1)
        return rows, float(rows.sum()), float(b.sum())

    def relative(self) -> Array:
        """The differences over the reference, once measured; takes the place of the gaps."""
        sizes: Array = self.memory[2]
        sizes.reshape(self.reference.shape)[...] = self.reference
        np.maximum(np.abs(sizes, out=sizes), LEAST_REFERENCE, out=sizes)
        relative: Array = np.divide(self.memory[1], sizes, out=sizes)
        return relative

    def leave_out(self, missing: Array) -> None:
        """Put zeros where something is missing."""
        self.missing = missing
        self.reference, self.candidate = (
            np.where(missing, side.dtype.type(0), side) for side in (self.reference, self.candidate)
        )

    def flat_index(self, place: int) -> int:
        """Where in the tensor a place of the flattened piece is."""
        row, column = divmod(place, int(self.reference.shape[1]))
        return (self.row + row) * self.columns + self.column + column


def _dot(a: Array, b: Array) -> float:
    whole = a.size // _CHUNK * _CHUNK
    chunks = a[:whole].reshape(-1, 1, _CHUNK) @ b[:whole].reshape(-1, _CHUNK, 1)
    return float(chunks.sum() + a[whole:] @ b[whole:])


class Regions:
    """Squared differences, and positions left out, of the columns of some panels; 64 columns are a block."""

    def __init__(self, rows: int, width: int) -> None:
        self._height = min(rows, PANEL)  # of a panel
        self.squares = np.zeros((rows // self._height, width))
        self.missing: Array | None = None

    def add(self, piece: Piece) -> None:
        """Add some rows of one panel, or all rows."""
        by_panel = (len(self.squares), -1, self.squares.shape[1])
        self.squares += piece.squares.reshape(by_panel).sum(axis=1)
        if piece.missing is not None:
            missing = np.count_nonzero(piece.missing.reshape(by_panel), axis=1)
            self.missing = missing if self.missing is None else self.missing + missing

    def blocks(self) -> tuple[Array, Array]:
        """Sums and counts of each (panel, block)."""
        starts = np.arange(0, self.squares.shape[1], RUN)
        squares: Array = np.add.reduceat(self.squares, starts, axis=1)
        counts = np.full(squares.shape, self._height * RUN)
        counts[:, -1] = self._height * (self.squares.shape[1] - starts[-1])
        if self.missing is not None:
            counts -= np.add.reduceat(self.missing, starts, axis=1)
        return squares, counts
