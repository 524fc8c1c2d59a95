"""What a pass over a pair in plain numpy works on, and what accumulates while it does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import floats, layout
from .lanes import LANES, in_order, run_shape
from .layout import PANEL, Array, Matrix
from .results import Number

NOWHERE = (-1.0, -1, -1)


@dataclass(frozen=True, slots=True)
class Task:
    """What to measure, and how."""

    reference: Matrix
    candidate: Matrix
    integers: bool
    both_float: bool
    sampled: bool
    full: bool
    scale: float


@dataclass(slots=True)
class Totals:
    """What accumulates over a band, and then over the bands."""

    squares: Array  # see _products
    row_squares: Array | None  # of matrices of at most one panel, whose bands cut the rows
    row_counts: Array | None
    column_squares: Array | None
    column_counts: Array | None
    ulp_counts: Array
    max_abs: Number
    max_abs_index: int = -1
    mismatch_index: int = -1
    max_ulp: int = 0
    worst_row: tuple[float, int, int] = NOWHERE
    worst_block: tuple[float, int, int] = NOWHERE
    compared: int = 0
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
        rows = task.reference.rows if task.reference.rows <= PANEL else None
        columns = task.reference.columns
        summed = columns if task.full and columns <= layout.MAX_COLUMNS else None
        return cls(
            squares=np.zeros(5),
            row_squares=_zeros(rows, np.float64),
            row_counts=_zeros(rows, np.int64),
            column_squares=_zeros(summed, np.float64),
            column_counts=_zeros(summed, np.int64),
            ulp_counts=np.zeros(floats.BUCKETS, np.int64),
            max_abs=0 if task.integers else 0.0,
        )

    def add(self, band: Totals) -> None:
        """Add the next band."""
        for name in _ADDED:
            mine, more = getattr(self, name), getattr(band, name)
            setattr(self, name, None if mine is None else mine + more)
        earlier = band.max_abs == self.max_abs and 0 <= band.max_abs_index < self.max_abs_index
        if band.max_abs > self.max_abs or earlier:
            self.max_abs, self.max_abs_index = band.max_abs, band.max_abs_index
        if band.mismatch_index >= 0:
            self.note_mismatch(band.mismatch_index)
        self.max_ulp = max(self.max_ulp, band.max_ulp)
        self.worst_row = band.worst_row if band.worst_row[0] > self.worst_row[0] else self.worst_row
        self.worst_block = band.worst_block if band.worst_block[0] > self.worst_block[0] else self.worst_block

    def note_mismatch(self, index: int) -> None:
        self.mismatch_index = index if self.mismatch_index < 0 else min(index, self.mismatch_index)


_ADDED = (
    *("squares", "row_squares", "row_counts", "column_squares", "column_counts", "ulp_counts", "compared"),
    *(
        "differing",
        "nan_reference",
        "nan_candidate",
        "inf_reference",
        "inf_candidate",
        "mismatches",
        "sign_flips",
    ),
)


def _zeros(count: int | None, dtype: type[np.generic]) -> Array | None:
    return None if count is None else np.zeros(count, dtype)


class Workspace:
    """Memory for one piece after the other: to get new memory from the system costs more than the work in it."""

    def __init__(self) -> None:
        self._memory = np.empty(0)

    def arrays(self, count: int, rows: int, columns: int) -> Array:
        """That many uninitialized arrays for a piece, laid out as `spread` does."""
        height, runs = run_shape(columns)
        size = count * rows * runs * height
        if self._memory.size < size:
            self._memory = np.empty(size)
        arrays: Array = self._memory[:size].reshape(count, height // LANES, -1)
        return arrays


@dataclass(slots=True)
class Piece:
    """Some rows and columns of both sides."""

    row: int
    column: int
    columns: int  # of the whole matrix
    reference: Array
    candidate: Array
    finite: Array | None  # which positions are compared, where not all are
    lanes: Array  # reference, candidate, difference and its square, each as `spread` lays it out

    def run_counts(self) -> Array:
        """How many elements of each (row, run) are compared."""
        rows, columns = self.reference.shape
        height, runs = run_shape(columns)
        if self.finite is not None:
            counted: Array = np.count_nonzero(self.by_run(self.finite), axis=2)
            return counted
        counts = np.full((rows, runs), height)
        counts[:, -1] = columns - height * (runs - 1)
        return counts

    def by_run(self, elements: Array) -> Array:
        """Something of each (row, column) as (row, run, place in the run), zero after the last column."""
        rows, width = elements.shape
        height, runs = run_shape(width)
        if width != runs * height:
            elements = np.pad(elements, ((0, 0), (0, runs * height - width)))
        return elements.reshape(rows, runs, height)

    def flat_indices(self, places: Array) -> Array:
        """Where in the tensor some places of the flattened lanes are."""
        height, runs = run_shape(self.reference.shape[1])
        step, rest = np.divmod(places, self.lanes.shape[2])
        run, lane = np.divmod(rest, LANES)
        row, run = np.divmod(run, runs)
        indices: Array = (self.row + row) * self.columns + self.column + run * height + step * LANES + lane
        return indices


class Regions:
    """Squared differences of the blocks and columns of some panels, added row after row."""

    def __init__(self, panels: int, width: int) -> None:
        height, runs = run_shape(width)
        self.width = width
        self.block_squares = np.zeros((panels, runs))
        self.block_counts = np.zeros((panels, runs), np.int64)
        self._column_squares = np.zeros((height // LANES, panels, runs * LANES))

    def add(self, run_squares: Array, run_counts: Array, squares: Array) -> None:
        """Add the rows of a piece: sums and counts of its (row, run), and its squares, which are changed."""
        panels, runs = self.block_squares.shape
        by_panel = run_squares.reshape(panels, -1, runs)
        self.block_squares = in_order(self.block_squares, by_panel.transpose(0, 2, 1))
        self.block_counts += run_counts.reshape(panels, -1, runs).sum(axis=1)
        columns = squares.reshape(len(squares), panels, -1, runs * LANES)
        columns[:, :, 0] += self._column_squares
        self._column_squares = np.add.reduce(columns, axis=2)

    def column_squares(self) -> Array:
        """The sums of each (panel, column)."""
        panels, runs = self.block_squares.shape
        steps = self._column_squares.reshape(-1, panels, runs, LANES)
        return steps.transpose(1, 2, 0, 3).reshape(panels, -1)[:, : self.width]
