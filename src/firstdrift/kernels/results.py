"""What a measurement is, and how each number follows from the raw sums of a pass.

Both kernels (plain numpy and native) produce the same raw sums; every derived number is computed here and
only here, so that the two cannot come to differ in what "relative error" means. Numbers that do not exist are
None: a mean of nothing, a cosine of a zero vector. None of them is ever NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

Number = int | float


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of one tensor over its finite elements; complex tensors count as their components.

    min, max, mean and std are None when no element is finite; l2 is then 0. std is the population's (divided
    by the number of finite elements). Of integer and bool tensors min and max are exact ints.
    """

    count: int
    nan_count: int
    inf_count: int
    min: Number | None
    max: Number | None
    mean: float | None
    std: float | None
    l2: float

    @property
    def finite_count(self) -> int:
        return self.count - self.nan_count - self.inf_count


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the tensor's matrix view and its error: RMS of the difference there over RMS of the whole
    reference.

    The error is on the scale of `Measurement.rel_l2`, so their ratio says how concentrated the difference is.
    `start` is the flat (C order) index of the first element, `shape` the rows and columns covered.
    """

    error: float
    start: int
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Detail:
    """What is measured only for pairs that differ.

    ULP distances count the representable numbers between the two values in the coarser storage dtype; they
    are None for integers. `ulp_octaves[0]` counts distance 0 and `ulp_octaves[k]` distances in [2**(k-1),
    2**k); of tensors with 2**20 elements or more it is a sample of every eighth run, and so is `p999_ulp`.
    `max_ulp` is never sampled.
    """

    max_ulp: int | None
    p999_ulp: int | None
    ulp_octaves: tuple[int, ...] | None
    sign_flips: int
    matrix: tuple[int, int]
    worst_row: Region | None
    worst_column: Region | None
    worst_block: Region | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """Numbers about one pair of tensors of equal shape; no judgement.

    Every float is over the `compared` positions, those finite on both sides; the counts say what was left
    out. `differing` counts elements whose bits differ (of two dtypes: whose values or zero signs do), NaNs
    included. `max_rel` is the largest difference relative to the reference's element (or to 1e-12), and
    `max_over_std` the largest difference in units of the reference's standard deviation; both are None of pairs
    that differ where only the cheap numbers were asked for.
    """

    count: int
    compared: int
    differing: int
    nan_reference: int
    nan_candidate: int
    inf_reference: int
    inf_candidate: int
    nonfinite_mismatches: int
    nonfinite_mismatch_index: int | None
    max_abs: Number
    max_abs_index: int | None
    reference_at_max: Number | None
    candidate_at_max: Number | None
    max_rel: float | None
    max_over_std: float | None
    rel_l2: float | None
    rms: float | None
    cosine: float | None
    norm_ratio: float | None
    mean_difference: float | None
    norm_reference: float
    norm_candidate: float
    detail: Detail | None

    @property
    def bit_equal(self) -> bool:
        """Every bit is the same (of two dtypes: every value)."""
        return self.differing == 0

    @property
    def nonfinite_agree(self) -> bool:
        """NaNs, +Infs and -Infs are at the same positions on both sides."""
        return self.nonfinite_mismatches == 0


class Sums(NamedTuple):
    """Raw result of one pass over a pair. Regions are (mean square, first row, first column), row -1 for
    none.

    Sums of squares carry the square of `scale`, the power of two that kept float64 squares in range.
    """

    compared: int
    differing: int
    nan_reference: int
    nan_candidate: int
    inf_reference: int
    inf_candidate: int
    nonfinite_mismatches: int
    nonfinite_mismatch_index: int
    max_abs: Number
    max_abs_index: int
    max_rel: float
    square_reference: float
    square_candidate: float
    square_difference: float
    dot: float
    difference: float
    reference: float
    sign_flips: int
    max_ulp: int
    p999_ulp: int
    ulp_octaves: tuple[int, ...]
    worst_row: tuple[float, int, int]
    worst_column: tuple[float, int, int]
    worst_block: tuple[float, int, int]


BLOCK = 64
LOST = 1e-6  # of the mean square; a smaller variance has lost its digits to the mean


def _ratio(numerator: float, denominator: float) -> float:
    if denominator:
        return numerator / denominator
    return math.inf if numerator else 0.0


def _region(raw: tuple[float, int, int], mean_square: float, shape: tuple[int, int], columns: int) -> Region | None:
    error, row, column = raw
    if row < 0:
        return None
    return Region(math.sqrt(_ratio(error, mean_square)), row * columns + column, shape)


def detail_of(sums: Sums, matrix: tuple[int, int], *, ulp: bool) -> Detail:
    """The details of a differing pair."""
    rows, columns = matrix
    mean_square = _ratio(sums.square_reference, sums.compared)
    _, row, column = sums.worst_block
    return Detail(
        sums.max_ulp if ulp else None, sums.p999_ulp if ulp else None, sums.ulp_octaves if ulp else None,
        sums.sign_flips, matrix,
        worst_row=_region(sums.worst_row, mean_square, (1, columns), columns),
        worst_column=_region(sums.worst_column, mean_square, (rows, 1), columns),
        worst_block=_region(
            sums.worst_block, mean_square, (min(BLOCK, rows - row), min(BLOCK, columns - column)), columns
        ),
    )  # fmt: skip


def deviation_of(sums: Sums, scale: float = 1.0) -> float | None:
    """The reference's standard deviation; None where its mean is so much larger that the sums do not tell."""
    if not sums.compared:
        return None
    mean, square = sums.reference / sums.compared, sums.square_reference / sums.compared
    variance = square - mean * mean
    return math.sqrt(variance) / scale if variance > LOST * square else None if square else 0.0


def measurement_of(
    sums: Sums, count: int, at_max: tuple[Number, Number] | None, std: float | None, detail: Detail | None,
    scale: float = 1.0,
) -> Measurement:  # fmt: skip
    """The measurement that follows from the raw sums; `at_max` are both values at the largest difference, `std` is the
    reference's standard deviation, where it was asked for."""
    n = sums.compared
    reference, candidate = math.sqrt(sums.square_reference), math.sqrt(sums.square_candidate)
    difference = math.sqrt(sums.square_difference)
    max_rel = max_over_std = cosine = None
    if n and (detail is not None or not sums.differing):
        max_rel, max_over_std = sums.max_rel, _ratio(float(sums.max_abs), std or 0.0)
    if reference and candidate:
        cosine = max(-1.0, min(1.0, sums.dot / reference / candidate))
    reference_at_max, candidate_at_max = at_max or (None, None)
    return Measurement(
        count, n, sums.differing, sums.nan_reference, sums.nan_candidate, sums.inf_reference, sums.inf_candidate,
        sums.nonfinite_mismatches, sums.nonfinite_mismatch_index if sums.nonfinite_mismatches else None,
        sums.max_abs, sums.max_abs_index if at_max else None, reference_at_max, candidate_at_max, max_rel, max_over_std,
        rel_l2=_ratio(difference, reference) if n else None,
        rms=difference / math.sqrt(n) / scale if n else None,
        cosine=cosine,
        norm_ratio=candidate / reference if reference else None,
        mean_difference=sums.difference / n / scale if n else None,
        norm_reference=reference / scale, norm_candidate=candidate / scale, detail=detail,
    )  # fmt: skip


def stats_of(
    count: int, nan_count: int, inf_count: int, extremes: tuple[Number, Number], origin: float,
    sums: tuple[float, float, float], scale: float = 1.0,
) -> Stats:  # fmt: skip
    """Statistics from sums of (x - origin), its square, and x squared, all of x multiplied by `scale`.

    Measured from an element of the tensor (`origin`), the variance keeps its digits when the mean is far from
    zero.
    """
    n = count - nan_count - inf_count
    if not n:
        return Stats(count, nan_count, inf_count, None, None, None, None, 0.0)
    shift, square_shift, square = sums
    offset = shift / n
    variance = max(0.0, square_shift / n - offset * offset)
    mean = (origin + offset) / scale
    return Stats(count, nan_count, inf_count, *extremes, mean, math.sqrt(variance) / scale, math.sqrt(square) / scale)
