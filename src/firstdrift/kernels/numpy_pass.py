"""One pass over a pair in plain numpy: piece by piece, from two tensors to their raw sums.

A position that is not finite on both sides is 0 on both sides, and counted.
"""

from __future__ import annotations

import math

import numpy as np

from . import floats, pieces
from .pieces import PANEL, RUN, Array, Matrix, Span
from .results import Sums
from .totals import NOWHERE, Piece, Regions, Task, Totals, Workspace


def sums_of_pair(reference: Array, candidate: Array, full: bool, scale: float = 1.0) -> Sums:
    """The raw sums of two real tensors of equal shape, their values multiplied by `scale`."""
    task = Task(
        reference=Matrix(reference),
        candidate=Matrix(candidate),
        integers=reference.dtype.kind in "iub" and candidate.dtype.kind in "iub",
        ulp_dtype=floats.coarser(reference.dtype, candidate.dtype),
        sampled=reference.size >= pieces.SAMPLED_SIZE,
        full=full,
        scale=scale,
    )
    totals, workspace = Totals.of(task), Workspace(reference.size)
    with np.errstate(all="ignore"):
        for row, stop_row in pieces.panel_groups(task.reference.rows, task.reference.columns):
            _add_panels(totals, task, row, stop_row, workspace)
    return _raw(totals, task)


def _raw(totals: Totals, task: Task) -> Sums:
    worst_column = NOWHERE
    if totals.column_squares is not None and totals.column_missing is not None:
        counts = task.reference.rows - totals.column_missing
        mean, column, _ = _worse(NOWHERE, totals.column_squares, counts)
        worst_column = (mean, 0, column) if column >= 0 else NOWHERE
    square_reference, square_candidate, square_difference, dot, difference, reference = totals.sums.tolist()
    return Sums(
        task.reference.rows * task.reference.columns - totals.missing,
        totals.differing,
        totals.nan_reference,
        totals.nan_candidate,
        totals.inf_reference,
        totals.inf_candidate,
        totals.mismatches,
        totals.mismatch_index,
        totals.max_abs,
        totals.max_abs_index,
        totals.max_rel,
        square_reference,
        square_candidate,
        square_difference,
        dot,
        difference,
        reference,
        totals.sign_flips,
        totals.max_ulp,
        floats.percentile_999(totals.ulp_counts, totals.max_ulp),
        floats.octaves(totals.ulp_counts),
        totals.worst_row,
        worst_column,
        totals.worst_block,
    )


def _add_panels(totals: Totals, task: Task, row: int, stop_row: int, workspace: Workspace) -> None:
    row_squares, row_missing = np.zeros(stop_row - row), np.zeros(stop_row - row, np.int64)
    for column, stop_column in pieces.strips(task.reference.columns):
        regions = Regions(stop_row - row, stop_column - column)
        for start, stop in pieces.row_groups(row, stop_row, stop_column - column):
            piece, squares = _add_piece(totals, task, Span(start, stop, column, stop_column), workspace)
            row_squares[start - row : stop - row] += squares
            if piece.missing is not None:
                row_missing[start - row : stop - row] += np.count_nonzero(piece.missing, axis=1)
            if task.full:
                regions.add(piece)
            _add_largest(totals, task, piece)
            if task.full:
                _add_ulps(totals, task, piece)
                _add_relative(totals, piece)
        if task.full:
            _add_regions(totals, regions, row, column)
    if task.full:
        totals.worst_row = _worse(totals.worst_row, row_squares, task.reference.columns - row_missing, row)


def _add_piece(totals: Totals, task: Task, span: Span, workspace: Workspace) -> tuple[Piece, Array]:
    """Take a piece out of both sides and add its sums; return it with the sum of squared differences of each row."""
    reference, candidate = task.reference.piece(span), task.candidate.piece(span)
    piece = Piece(span.row, span.column, task.reference.columns, reference, candidate, workspace.arrays(reference.size))
    totals.differing += _count_differing(piece)
    sums = piece.measure(task.scale)
    # What is not finite survives in the sum of differences; only then is each element looked at.
    if not math.isfinite(sums.difference):
        missing = _count_nonfinite(totals, piece)
        if missing.any():
            piece.leave_out(missing)
            sums = piece.measure(task.scale)
    totals.sums += sums[:6]
    return piece, sums.rows


def _count_differing(piece: Piece) -> int:
    a, b = piece.reference, piece.candidate
    if a.dtype == b.dtype:
        return int(np.count_nonzero(floats.bit_gaps(a, b, piece.gaps(a.itemsize))))
    if a.dtype.kind in "iub" and b.dtype.kind in "iub":
        return int(np.count_nonzero(floats.integer_distance(a, b)))
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)
    return int(same.size - np.count_nonzero(same))


def _count_nonfinite(totals: Totals, piece: Piece) -> Array:
    """Count NaNs and Infs of a piece and where the sides disagree on them; say which positions are not compared."""
    a, b = piece.reference.astype(np.float64), piece.candidate.astype(np.float64)
    nan_a, nan_b, inf_a, inf_b = np.isnan(a), np.isnan(b), np.isinf(a), np.isinf(b)
    totals.nan_reference += int(np.count_nonzero(nan_a))
    totals.nan_candidate += int(np.count_nonzero(nan_b))
    totals.inf_reference += int(np.count_nonzero(inf_a))
    totals.inf_candidate += int(np.count_nonzero(inf_b))
    mismatches = np.flatnonzero((nan_a != nan_b) | (inf_a != inf_b) | (inf_a & inf_b & (a != b)))
    totals.mismatches += mismatches.size
    if mismatches.size:
        totals.note_mismatch(piece.flat_index(int(mismatches[0])))
    missing: Array = nan_a | nan_b | inf_a | inf_b
    totals.missing += int(np.count_nonzero(missing))
    return missing


def _add_largest(totals: Totals, task: Task, piece: Piece) -> None:
    """Keep the largest difference and the first (in flat order) position that has it."""
    if task.integers:
        gaps = floats.integer_distance(piece.reference, piece.candidate)
    elif float(piece.squares.max()) < totals.max_abs * totals.max_abs:  # nearly always, and in a single pass
        return
    else:
        gaps = np.abs(piece.differences, out=piece.squares)
    place = int(gaps.argmax())
    largest, index = gaps.item(place), piece.flat_index(place)
    if largest > totals.max_abs or (0 < largest == totals.max_abs and index < totals.max_abs_index):
        totals.max_abs, totals.max_abs_index = largest, index


def _add_regions(totals: Totals, regions: Regions, row: int, column: int) -> None:
    """Keep the worst block, the first of equals, and add to the columns."""
    squares, counts = regions.blocks()
    mean, index, _ = _worse(NOWHERE, squares.reshape(-1), counts.reshape(-1))
    panel, run = divmod(index, squares.shape[1])
    block = (row + panel * PANEL, column + run * RUN)
    worst, *place = totals.worst_block
    if index >= 0 and (mean > worst or (mean == worst and block < tuple(place))):
        totals.worst_block = (mean, *block)
    if totals.column_squares is not None and totals.column_missing is not None:
        here = slice(column, column + regions.squares.shape[1])
        totals.column_squares[here] += regions.squares.sum(axis=0)
        if regions.missing is not None:
            totals.column_missing[here] += regions.missing.sum(axis=0)


def _add_ulps(totals: Totals, task: Task, piece: Piece) -> None:
    """Count sign flips and, of two float tensors, the ULP distances."""
    a, b, dtype = piece.reference, piece.candidate, task.ulp_dtype
    if dtype is None:
        totals.sign_flips += int(np.count_nonzero(((a < 0) & (b > 0)) | ((a > 0) & (b < 0))))
        return
    gaps, missing = piece.gaps(dtype.itemsize), piece.missing
    if a.dtype != b.dtype or missing is not None:
        a, b = floats.narrowed(a, dtype), floats.narrowed(b, dtype)
        floats.bit_gaps(a, b, gaps)
    distances, largest, flips = floats.ulp_distances(a, b, gaps)
    totals.sign_flips += flips
    totals.max_ulp = max(totals.max_ulp, largest)
    if task.sampled:
        chosen = pieces.sampled((piece.row + piece.column // RUN) % pieces.SAMPLE_STEP, *distances.shape)
        distances, missing = distances.take(chosen), None if missing is None else missing.take(chosen)
    totals.ulp_counts += floats.histogram(distances, largest)
    if missing is not None:  # were counted as equal
        totals.ulp_counts[0] -= np.count_nonzero(missing)


def _add_relative(totals: Totals, piece: Piece) -> None:
    relative = piece.relative()
    totals.max_rel = max(totals.max_rel, float(relative.max()), -float(relative.min()))


def _worse(worst: tuple[float, int, int], squares: Array, counts: Array, start: int = 0) -> tuple[float, int, int]:
    """The larger of `worst` and the largest mean square, the earlier of equals."""
    if not squares.size:
        return worst
    means = np.where(counts > 0, squares / np.maximum(counts, 1), -1.0)
    index = int(means.argmax())
    mean = float(means[index])
    return (mean, start + index, 0) if mean > worst[0] else worst
