"""One pass over a pair in plain numpy: piece by piece, from two tensors to their raw sums.

A position that is not finite on both sides is 0 on both sides, and counted.
"""

from __future__ import annotations

import math

import numpy as np

from . import floats, layout
from .lanes import in_order, lane_sums, run_sums, spread
from .layout import PANEL, RUN, Array, Matrix, Span
from .results import Number, Sums
from .threads import share
from .totals import NOWHERE, Piece, Regions, Task, Totals, Workspace


def sums_of_pair(reference: Array, candidate: Array, full: bool, scale: float = 1.0, threads: int = 1) -> Sums:
    """The raw sums of two real tensors of equal shape, their values multiplied by `scale`."""
    task = Task(
        reference=Matrix(reference),
        candidate=Matrix(candidate),
        integers=reference.dtype.kind in "iub" and candidate.dtype.kind in "iub",
        both_float=floats.is_float(reference.dtype) and floats.is_float(candidate.dtype),
        sampled=reference.size >= layout.SAMPLED_SIZE,
        full=full,
        scale=scale,
    )
    spans = layout.bands(task.reference.rows, task.reference.columns)
    bands: list[Totals | None] = [None] * len(spans)

    spare: list[Workspace] = []

    def work(band: int) -> None:
        workspace = spare.pop() if spare else Workspace()
        with np.errstate(all="ignore"):
            bands[band] = _band(task, spans[band], workspace)
        spare.append(workspace)

    share(work, len(spans), threads)
    totals = Totals.of(task)
    for band in bands:
        assert band is not None
        totals.add(band)
    return _raw(totals, full)


def _raw(totals: Totals, full: bool) -> Sums:
    squares: tuple[float, float, float, float, float] = tuple(totals.squares.tolist())
    worst_row, worst_column = totals.worst_row if full else NOWHERE, NOWHERE
    if full and totals.row_squares is not None and totals.row_counts is not None:
        worst_row = _worse(worst_row, totals.row_squares, totals.row_counts)
    if totals.column_squares is not None and totals.column_counts is not None:
        mean, column, _ = _worse(NOWHERE, totals.column_squares, totals.column_counts)
        worst_column = (mean, 0, column) if column >= 0 else NOWHERE
    return Sums(
        totals.compared,
        totals.differing,
        totals.nan_reference,
        totals.nan_candidate,
        totals.inf_reference,
        totals.inf_candidate,
        totals.mismatches,
        totals.mismatch_index,
        totals.max_abs,
        totals.max_abs_index,
        *squares,
        totals.sign_flips,
        totals.max_ulp,
        floats.percentile_999(totals.ulp_counts, totals.max_ulp),
        floats.octaves(totals.ulp_counts),
        worst_row,
        worst_column,
        totals.worst_block,
    )


def _band(task: Task, band: Span, workspace: Workspace) -> Totals:
    totals = Totals.of(task)
    for row, stop_row in layout.panel_groups(band):
        rows = stop_row - row
        panels = max(1, rows // PANEL)
        row_sums, row_counts = np.zeros((5, rows)), np.zeros(rows, np.int64)
        for column, stop_column in layout.strips(band):
            regions = Regions(panels, stop_column - column)
            for start, stop in layout.row_groups(row, stop_row, stop_column - column):
                span, here = Span(start, stop, column, stop_column), slice(start - row, stop - row)
                _add_piece(totals, task, span, workspace, regions, row_sums[:, here], row_counts[here])
            if task.full:
                _add_regions(totals, regions, row, column)
        totals.compared += int(row_counts.sum())
        panel_sums = in_order(np.zeros((5, panels)), row_sums.reshape(5, panels, -1))
        totals.squares = in_order(totals.squares, panel_sums)
        if totals.row_squares is not None and totals.row_counts is not None:
            totals.row_squares += row_sums[2]
            totals.row_counts += row_counts
        else:
            totals.worst_row = _worse(totals.worst_row, row_sums[2], row_counts, row)
    return totals


def _add_piece(
    totals: Totals, task: Task, span: Span, workspace: Workspace, regions: Regions, row_sums: Array, row_counts: Array
) -> None:
    """Add a piece to everything it belongs to; `row_sums` and `row_counts` are those of its rows."""
    piece, products = _cut(totals, task, span, workspace)
    counts = piece.run_counts()
    row_sums[:] = in_order(row_sums, products)
    row_counts += counts.sum(axis=1)
    _add_largest(totals, task, piece)
    if task.full:
        regions.add(products[2], counts, piece.lanes[3])
        _add_column_counts(totals, piece)
        _add_ulps(totals, task, piece, counts)


def _cut(totals: Totals, task: Task, span: Span, workspace: Workspace) -> tuple[Piece, Array]:
    """Take a piece out of both sides, with its products; count what differs and what is not finite."""
    reference, candidate = task.reference.piece(span), task.candidate.piece(span)
    totals.differing += _count_differing(reference, candidate)
    lanes = workspace.arrays(4, *reference.shape)
    products, finite = _products(reference, candidate, task.scale, lanes), None
    # What is not finite survives in the sum of differences; only then is each element looked at.
    if not math.isfinite(float(products[4].sum())):
        finite = _count_nonfinite(totals, reference, candidate, span, task.reference.columns)
    if finite is not None:
        reference, candidate = (np.where(finite, side, side.dtype.type(0)) for side in (reference, candidate))
        products = _products(reference, candidate, task.scale, lanes)
    piece = Piece(span.row, span.column, task.reference.columns, reference, candidate, finite, lanes)
    return piece, products


def _count_differing(a: Array, b: Array) -> int:
    if a.dtype == b.dtype:
        bits = f"u{a.itemsize}"
        return int(np.count_nonzero(a.view(bits) != b.view(bits)))
    if a.dtype.kind in "iub" and b.dtype.kind in "iub":
        return int(np.count_nonzero(floats.integer_distance(a, b)))
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)
    return int(same.size - np.count_nonzero(same))


def _count_nonfinite(totals: Totals, reference: Array, candidate: Array, span: Span, columns: int) -> Array | None:
    """Count NaNs and Infs of a piece and where the sides disagree on them; say which positions are finite."""
    a, b = reference.astype(np.float64), candidate.astype(np.float64)
    nan_a, nan_b, inf_a, inf_b = np.isnan(a), np.isnan(b), np.isinf(a), np.isinf(b)
    totals.nan_reference += int(np.count_nonzero(nan_a))
    totals.nan_candidate += int(np.count_nonzero(nan_b))
    totals.inf_reference += int(np.count_nonzero(inf_a))
    totals.inf_candidate += int(np.count_nonzero(inf_b))
    rows, places = np.nonzero((nan_a != nan_b) | (inf_a != inf_b) | (inf_a & inf_b & (a != b)))
    totals.mismatches += rows.size
    if rows.size:
        totals.note_mismatch(int(((span.row + rows) * columns + span.column + places).min()))
    finite: Array = ~(nan_a | nan_b | inf_a | inf_b)
    return None if finite.all() else finite


def _products(reference: Array, candidate: Array, scale: float, lanes: Array) -> Array:
    """Run sums (5, row, run) of the squares of reference, candidate and difference, of the dot product and of
    the difference. Fills `lanes` with reference, candidate, difference and difference squared."""
    a, b, d, product = lanes
    spread(reference, scale, a)
    spread(candidate, scale, b)
    np.subtract(b, a, out=d)
    sums = np.empty((5, lanes.shape[2]))
    for left, right, out in ((a, a, sums[0]), (b, b, sums[1]), (a, b, sums[3]), (d, d, sums[2])):
        lane_sums(np.multiply(left, right, out=product), out)
    lane_sums(d, sums[4])
    return run_sums(sums).reshape(5, len(reference), -1)


def _add_largest(totals: Totals, task: Task, piece: Piece) -> None:
    """Keep the largest difference and the first (in flat order) position that has it."""
    difference = piece.lanes[2]
    if task.integers:
        gap = floats.integer_distance(piece.reference, piece.candidate)
        largest: Number = int(gap.max())
    else:
        bounds = {float(difference.max()), float(difference.min())}
        largest = max(map(abs, bounds))
    if not largest or largest < totals.max_abs:
        return
    if task.integers:
        rows, columns = np.nonzero(gap == largest)
        indices = (piece.row + rows) * piece.columns + piece.column + columns
    else:
        found = [np.flatnonzero(difference == bound) for bound in bounds if abs(bound) == largest]
        indices = piece.flat_indices(np.concatenate(found))
    index = int(indices.min())
    if largest > totals.max_abs or index < totals.max_abs_index:
        totals.max_abs, totals.max_abs_index = largest, index


def _add_regions(totals: Totals, regions: Regions, row: int, column: int) -> None:
    """Keep the worst block, the first of equals, and add a panel after the other to the columns."""
    mean, index, _ = _worse(NOWHERE, regions.block_squares.reshape(-1), regions.block_counts.reshape(-1))
    panel, run = divmod(index, regions.block_squares.shape[1])
    block = (row + panel * PANEL, column + run * RUN)
    worst, *place = totals.worst_block
    if index >= 0 and (mean > worst or (mean == worst and block < tuple(place))):
        totals.worst_block = (mean, *block)
    if totals.column_squares is not None:
        for squares in regions.column_squares():
            totals.column_squares[column : column + regions.width] += squares


def _add_column_counts(totals: Totals, piece: Piece) -> None:
    if totals.column_counts is not None:
        rows, width = piece.reference.shape
        counts = rows if piece.finite is None else np.count_nonzero(piece.finite, axis=0)
        totals.column_counts[piece.column : piece.column + width] += counts


def _add_ulps(totals: Totals, task: Task, piece: Piece, counts: Array) -> None:
    """Count sign flips and, of two float tensors, the ULP distances."""
    if not task.both_float:
        totals.sign_flips += int(np.count_nonzero(np.sign(piece.lanes[0]) * np.sign(piece.lanes[1]) < 0))
        return
    dtype = floats.coarser(piece.reference.dtype, piece.candidate.dtype)
    sides = (floats.narrowed(side, dtype) for side in (piece.reference, piece.candidate))
    distances, flips = floats.ulp_distances(*sides)
    totals.sign_flips += flips
    totals.max_ulp = max(totals.max_ulp, int(distances.max()))
    shape, counts = counts.shape, counts.reshape(-1)
    by_run = piece.by_run(distances).reshape(counts.size, -1)
    if task.sampled:
        start = (piece.row + piece.column // RUN) % layout.SAMPLE_STEP
        chosen = layout.sampled_runs(start, *shape)
        by_run, counts = by_run.take(chosen, axis=0), counts.take(chosen)
    totals.ulp_counts += floats.histogram(by_run)
    # Padding and the positions left out were counted as equal.
    totals.ulp_counts[0] -= by_run.size - int(counts.sum())


def _worse(worst: tuple[float, int, int], squares: Array, counts: Array, start: int = 0) -> tuple[float, int, int]:
    """The larger of `worst` and the largest mean square, the earlier of equals."""
    if not squares.size:
        return worst
    means = np.where(counts > 0, squares / np.maximum(counts, 1), -1.0)
    index = int(means.argmax())
    mean = float(means[index])
    return (mean, start + index, 0) if mean > worst[0] else worst
