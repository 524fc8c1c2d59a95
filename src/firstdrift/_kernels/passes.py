"""One pass over a pair in plain numpy: piece by piece, from two tensors to their raw sums.

A position that is not finite on both sides is 0 on both sides, and counted.
"""

from __future__ import annotations

import math

import numpy as np

from . import floats, layout
from .lanes import in_order, run_sums, spread
from .layout import PANEL, RUN, Array, Matrix, Span
from .results import Number, Sums
from .threads import share
from .totals import NOWHERE, Piece, Regions, Task, Totals


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

    def work(first: int, stop: int) -> None:
        with np.errstate(all="ignore"):
            bands[first:stop] = [_band(task, span) for span in spans[first:stop]]

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


def _band(task: Task, band: Span) -> Totals:
    totals = Totals.of(task)
    for row, stop_row in layout.panel_groups(band):
        rows = stop_row - row
        panels = max(1, rows // PANEL)
        row_sums, row_counts = np.zeros((5, rows)), np.zeros(rows, np.int64)
        for column, stop_column in layout.strips(band):
            regions = Regions(panels, stop_column - column)
            for start, stop in layout.row_groups(row, stop_row, stop_column - column):
                piece = _cut(totals, task, Span(start, stop, column, stop_column))
                products, squared = _products(piece)
                counts, here = piece.run_counts(), slice(start - row, stop - row)
                row_sums[:, here] = in_order(row_sums[:, here], products)
                row_counts[here] += counts.sum(axis=1)
                _add_largest(totals, task, piece)
                if task.full:
                    regions.add(products[2], counts, squared)
                    _add_column_counts(totals, piece)
                    _add_ulps(totals, task, piece, counts)
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


def _cut(totals: Totals, task: Task, span: Span) -> Piece:
    """Take a piece out of both sides; count what differs and what is not finite."""
    reference, candidate = task.reference.piece(span), task.candidate.piece(span)
    totals.differing += _count_differing(reference, candidate)
    a, b = spread(reference, task.scale), spread(candidate, task.scale)
    difference, finite = b - a, None
    # What is not finite survives in the sum of differences; only then is each element looked at.
    if not math.isfinite(float(difference.sum())):
        finite = _count_nonfinite(totals, reference, candidate, span, task.reference.columns)
    if finite is not None:
        reference, candidate = (np.where(finite, side, side.dtype.type(0)) for side in (reference, candidate))
        a, b = spread(reference, task.scale), spread(candidate, task.scale)
        difference = b - a
    return Piece(span.row, span.column, task.reference.columns, reference, candidate, finite, (a, b, difference))


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


def _products(piece: Piece) -> tuple[Array, Array]:
    """Run sums (5, row, run) of the squares of reference, candidate and difference, of the dot product and of
    the difference; and each difference squared."""
    a, b, d = piece.lanes
    product, squared = np.empty_like(a), d * d
    sums = [
        run_sums(np.multiply(a, a, out=product)),
        run_sums(np.multiply(b, b, out=product)),
        run_sums(squared),
        run_sums(np.multiply(a, b, out=product)),
        run_sums(d),
    ]
    return np.stack(sums), squared


def _add_largest(totals: Totals, task: Task, piece: Piece) -> None:
    """Keep the largest difference and the first (in flat order) position that has it."""
    if task.integers:
        gap = floats.integer_distance(piece.reference, piece.candidate)
        largest: Number = int(gap.max())
    else:
        difference = piece.lanes[2]
        largest = float(max(difference.max(), -difference.min()))
    if not largest or largest < totals.max_abs:
        return
    if task.integers:
        rows, columns = np.nonzero(gap == largest)
    else:
        places, rows, runs = np.nonzero(np.abs(difference) == largest)
        columns = runs * difference.shape[0] + places
    index = int(((piece.row + rows) * piece.columns + piece.column + columns).min())
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
        for squares in regions.column_squares.transpose(1, 2, 0):
            totals.column_squares[column : column + regions.width] += squares.reshape(-1)[: regions.width]


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
    a, b = (floats.ordered(floats.narrowed(side, dtype)) for side in (piece.reference, piece.candidate))
    low, high = np.minimum(a, b), np.maximum(a, b)
    totals.sign_flips += int(np.count_nonzero((low < 0) & (high > 0)))
    distances = floats.distance(low, high)
    totals.max_ulp = max(totals.max_ulp, int(distances.max()))
    by_run = piece.by_run(distances)
    if task.sampled:
        rows, runs = counts.shape
        row = piece.row + np.arange(rows)[:, None]
        run = piece.column // RUN + np.arange(runs)[None, :]
        chosen = (row + run) % layout.SAMPLE_STEP == 0
        by_run, counts = by_run[chosen], counts[chosen]
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
