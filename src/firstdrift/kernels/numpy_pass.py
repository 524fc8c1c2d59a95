"""One pass over a pair in plain numpy: piece by piece, from two tensors to their raw sums.

A position that is not finite on both sides is 0 on both sides, and counted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import floats, pieces
from .pieces import LEAST_REFERENCE, MAX_COLUMNS, PANEL, RUN, Array, Matrix, Span
from .results import Number, Sums

NOWHERE = (-1.0, -1, -1)
_CHUNK = 1 << 12  # elements of a dot product: so few that no BLAS shares them among threads of its own


def sums_of_pair(reference: Array, candidate: Array, full: bool, scale: float = 1.0) -> Sums:
    """The raw sums of two real tensors of equal shape, their values multiplied by `scale`."""
    totals = _Totals(reference, candidate, full, scale)
    with np.errstate(all="ignore"):
        for row, stop_row in pieces.panel_groups(totals.matrix.rows, totals.matrix.columns):
            totals.add_rows(row, stop_row)
    return totals.sums()


class _Totals:
    """What accumulates over the pieces; attributes that a `Sums` has are called as there."""

    def __init__(self, reference: Array, candidate: Array, full: bool, scale: float) -> None:
        self.matrix, self.other = Matrix(reference), Matrix(candidate)
        self.full, self.scale = full, scale
        self.integers = reference.dtype.kind in "iub" and candidate.dtype.kind in "iub"
        self.ulp_dtype = floats.coarser(reference.dtype, candidate.dtype)
        self.sampled = reference.size >= pieces.SAMPLED_SIZE
        summed = self.matrix.columns if full and self.matrix.columns <= MAX_COLUMNS else 0
        self.column_squares, self.column_counts = np.zeros(summed), np.full(summed, self.matrix.rows)
        self.terms = np.zeros(6)  # from square_reference to reference, as in `Sums`
        self.ulp_counts = np.zeros(floats.BUCKETS, np.int64)
        self.compared = reference.size
        self.differing = self.sign_flips = self.max_ulp = self.nonfinite_mismatches = 0
        self.nan_reference = self.nan_candidate = self.inf_reference = self.inf_candidate = 0
        self.nonfinite_mismatch_index = self.max_abs_index = -1
        self.max_abs: Number = 0 if self.integers else 0.0
        self.max_rel = 0.0
        self.worst_row = self.worst_block = NOWHERE
        # For one piece after the other: new memory from the system costs more than the work in it.
        self.memory = np.empty((3, min(reference.size, pieces.PIECE_SIZE)))

    def sums(self) -> Sums:
        mean, column, _ = _worse(NOWHERE, self.column_squares, self.column_counts)
        derived: dict[str, Any] = {
            "worst_column": (mean, 0, column) if column >= 0 else NOWHERE,
            "p999_ulp": floats.percentile_999(self.ulp_counts, self.max_ulp),
            "ulp_octaves": floats.octaves(self.ulp_counts),
        }
        names = ("square_reference", "square_candidate", "square_difference", "dot", "difference", "reference")
        derived |= dict(zip(names, self.terms.tolist(), strict=True))
        return Sums(**{name: derived[name] if name in derived else getattr(self, name) for name in Sums._fields})

    def add_rows(self, row: int, stop_row: int) -> None:
        """Add whole panels of rows, or the last rows."""
        squares, counts = np.zeros(stop_row - row), np.full(stop_row - row, self.matrix.columns)
        for column, stop_column in pieces.strips(stop_row - row, self.matrix.columns):
            self._add_piece(Span(row, stop_row, column, stop_column), squares, counts)
        if self.full:
            self.worst_row = _worse(self.worst_row, squares, counts, row)

    def _add_piece(self, span: Span, row_squares: Array, row_counts: Array) -> None:
        """Add a piece of both sides, and its rows to their sums of squared differences and counts."""
        a, b = self.matrix.piece(span), self.other.piece(span)
        gaps = floats.bit_gaps(a, b, self.memory[2]) if a.dtype == b.dtype else None
        self.differing += int(np.count_nonzero(_differing(a, b) if gaps is None else gaps))
        terms, differences, squares = self._sums(a, b)
        missing = None
        # What is not finite survives in the sum of differences; only then is each element looked at.
        if not math.isfinite(terms[4]) and (nonfinite := self._count_nonfinite(a, b, span)).any():
            missing, gaps = nonfinite, None
            a, b = (np.where(missing, side.dtype.type(0), side) for side in (a, b))
            terms, differences, squares = self._sums(a, b)
            row_counts -= np.count_nonzero(missing, axis=1)
        self.terms += terms
        row_squares += squares.sum(axis=1)
        if self.full:
            self._add_regions(squares, missing, span)
            self._add_ulps(a, b, gaps, missing, span)
            relative = self._room(2, a.shape)
            relative[...] = a
            np.maximum(np.abs(relative, out=relative), LEAST_REFERENCE, out=relative)
            np.divide(differences, relative, out=relative)
            self.max_rel = max(self.max_rel, float(relative.max()), -float(relative.min()))
        if self.integers:
            self._add_largest(floats.integer_distance(a, b), span)
        elif float(squares.max()) >= self.max_abs * self.max_abs:  # hardly ever, so that one pass does
            self._add_largest(np.abs(differences, out=squares), span)

    def _room(self, which: int, shape: tuple[int, ...]) -> Array:
        """Memory for a piece of this shape."""
        room: Array = self.memory[which, : math.prod(shape)].reshape(shape)
        return room

    def _sums(self, reference: Array, candidate: Array) -> tuple[list[float], Array, Array]:
        """The six sums over a piece; the differences, and their squares."""
        a, b = self._room(0, reference.shape), self._room(1, reference.shape)
        a[...], b[...] = reference, candidate
        if self.scale != 1.0:
            a *= self.scale
            b *= self.scale
        terms = [_dot(a, a), _dot(b, b), 0.0, _dot(a, b), 0.0, float(a.sum())]
        differences = np.subtract(b, a, out=b)
        squares = np.square(differences, out=a)
        terms[2], terms[4] = float(squares.sum()), float(differences.sum())
        return terms, differences, squares

    def _add_largest(self, gaps: Array, span: Span) -> None:
        """Keep the largest difference and the first (in flat order) position that has it."""
        place = int(gaps.argmax())
        largest, index = gaps.item(place), self._flat_index(span, place)
        if largest > self.max_abs or (0 < largest == self.max_abs and index < self.max_abs_index):
            self.max_abs, self.max_abs_index = largest, index

    def _flat_index(self, span: Span, place: int) -> int:
        """Where in the tensor a place of the flattened piece is."""
        row, column = divmod(place, span.stop_column - span.column)
        return (span.row + row) * self.matrix.columns + span.column + column

    def _count_nonfinite(self, a: Array, b: Array, span: Span) -> Array:
        """Count NaNs and Infs and where the sides disagree on them; say which positions are not compared."""
        a, b = a.astype(np.float64), b.astype(np.float64)
        nan_a, nan_b, inf_a, inf_b = np.isnan(a), np.isnan(b), np.isinf(a), np.isinf(b)
        self.nan_reference += int(np.count_nonzero(nan_a))
        self.nan_candidate += int(np.count_nonzero(nan_b))
        self.inf_reference += int(np.count_nonzero(inf_a))
        self.inf_candidate += int(np.count_nonzero(inf_b))
        mismatches = np.flatnonzero((nan_a != nan_b) | (inf_a != inf_b) | (inf_a & inf_b & (a != b)))
        if mismatches.size:
            first, known = self._flat_index(span, int(mismatches[0])), self.nonfinite_mismatch_index
            self.nonfinite_mismatch_index = first if known < 0 else min(first, known)
        self.nonfinite_mismatches += mismatches.size
        missing: Array = nan_a | nan_b | inf_a | inf_b
        self.compared -= int(np.count_nonzero(missing))
        return missing

    def _add_regions(self, squares: Array, missing: Array | None, span: Span) -> None:
        """Keep the worst block, the first of equals, and add to the columns."""
        rows, width = squares.shape
        height, starts = min(rows, PANEL), np.arange(0, width, RUN)
        by_panel = squares.reshape(-1, height, width).sum(axis=1)
        counts = np.full(by_panel.shape, height)
        if missing is not None:
            counts -= np.count_nonzero(missing.reshape(-1, height, width), axis=1)
        blocks = np.add.reduceat(by_panel, starts, axis=1)
        block_counts = np.add.reduceat(counts, starts, axis=1)
        mean, index, _ = _worse(NOWHERE, blocks.reshape(-1), block_counts.reshape(-1))
        if mean > self.worst_block[0]:
            panel, run = divmod(index, len(starts))
            self.worst_block = (mean, span.row + panel * PANEL, span.column + run * RUN)
        if self.column_squares.size:
            here = slice(span.column, span.stop_column)
            self.column_squares[here] += by_panel.sum(axis=0)
            self.column_counts[here] -= rows - counts.sum(axis=0)

    def _add_ulps(self, a: Array, b: Array, gaps: Array | None, missing: Array | None, span: Span) -> None:
        """Count sign flips and, of two float tensors, the ULP distances; `gaps` are None where dtypes differ."""
        dtype = self.ulp_dtype
        if dtype is None:
            self.sign_flips += int(np.count_nonzero(((a < 0) & (b > 0)) | ((a > 0) & (b < 0))))
            return
        if gaps is None:
            a, b = floats.narrowed(a, dtype), floats.narrowed(b, dtype)
            gaps = floats.bit_gaps(a, b, self.memory[2])
        distances, largest, flips = floats.ulp_distances(a, b, gaps)
        self.sign_flips += flips
        self.max_ulp = max(self.max_ulp, largest)
        if self.sampled:
            chosen = pieces.sampled((span.row + span.column // RUN) % pieces.SAMPLE_STEP, *distances.shape)
            distances, missing = distances.take(chosen), None if missing is None else missing.take(chosen)
        self.ulp_counts += floats.histogram(distances, largest)
        if missing is not None:  # were counted as equal
            self.ulp_counts[0] -= np.count_nonzero(missing)


def _differing(a: Array, b: Array) -> Array:
    """Where tensors of two dtypes have other values, or zeros of other signs."""
    if a.dtype.kind in "iub" and b.dtype.kind in "iub":
        return floats.integer_distance(a, b)
    a, b = a.astype(np.float64), b.astype(np.float64)
    differing: Array = ~((a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b))
    return differing


def _dot(a: Array, b: Array) -> float:
    a, b = a.reshape(-1), b.reshape(-1)
    whole = a.size // _CHUNK * _CHUNK
    chunks = a[:whole].reshape(-1, 1, _CHUNK) @ b[:whole].reshape(-1, _CHUNK, 1)
    return float(chunks.sum() + a[whole:] @ b[whole:])


def _worse(worst: tuple[float, int, int], squares: Array, counts: Array, start: int = 0) -> tuple[float, int, int]:
    """The larger of `worst` and the largest mean square, the earlier of equals."""
    if not squares.size:
        return worst
    means = np.where(counts > 0, squares / np.maximum(counts, 1), -1.0)
    index = int(means.argmax())
    mean = float(means[index])
    return (mean, start + index, 0) if mean > worst[0] else worst
