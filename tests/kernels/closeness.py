"""What two kernels must agree on: everything counted or found exactly, sums to 1e-12 of their absolute terms."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from tests.kernels.pairs import Array

from firstdrift.kernels import Detail, Measurement, Region, Stats, pieces

TOLERANCE = 1e-12

# Roots and ratios of sums whose terms are all positive.
POSITIVE = ("rel_l2", "rms", "norm_ratio", "norm_reference", "norm_candidate")
REGIONS = ("worst_row", "worst_column", "worst_block")


def assert_same_measurement(found: Measurement, expected: Measurement, reference: Array, candidate: Array) -> None:
    assert _exact(found) == _exact(expected)
    for name in POSITIVE:
        assert_near(getattr(found, name), getattr(expected, name), name=name)
    r, c, unit = _normal(reference, candidate)
    if found.max_over_std and expected.max_over_std:  # a variance is known to a part of the mean square
        square = (expected.norm_reference * (expected.max_over_std / expected.max_abs)) ** 2 / expected.compared
        assert_near(found.max_over_std, expected.max_over_std, expected.max_over_std * (1 + square), "max_over_std")
    else:
        assert found.max_over_std == expected.max_over_std
    terms = float(np.nansum(np.abs(c - r))) / max(1, found.compared) * unit
    assert_near(found.mean_difference, expected.mean_difference, terms, "mean_difference")
    norms = math.sqrt(np.nansum(np.square(r))) * math.sqrt(np.nansum(np.square(c)))
    terms = float(np.nansum(np.abs(r * c))) / norms if norms else 1.0
    assert_near(found.cosine, expected.cosine, terms, "cosine")
    if found.detail is not None and expected.detail is not None:
        squares = np.square(c - r).reshape(found.detail.matrix)
        _assert_same_regions(found.detail, expected.detail, squares)


def assert_same_stats(found: Stats, expected: Stats) -> None:
    sums = {"mean": None, "std": None, "l2": 0.0}
    assert dataclasses.replace(found, **sums) == dataclasses.replace(expected, **sums)
    assert_near(found.l2, expected.l2, name="l2")
    if found.min is None or found.max is None or found.std is None or expected.std is None:
        assert (found.mean, found.std) == (expected.mean, expected.std)
        return
    largest = float(max(abs(found.min), abs(found.max))) or 1.0
    spread = float(found.max) / largest - float(found.min) / largest  # no element is further from the first one
    assert_near(found.mean, expected.mean, largest * (1 + spread), "mean")
    variances = [(std / largest) ** 2 for std in (found.std, expected.std)]
    assert_near(*variances, spread**2, "variance")


def assert_near(found: float | None, expected: float | None, terms: float | None = None, name: str = "") -> None:
    """Within the tolerance of the mean absolute term; without cancellation that is the number itself."""
    if found is None or expected is None or found == expected:
        assert found == expected, name
        return
    terms = abs(expected) if terms is None else terms
    assert abs(found - expected) <= TOLERANCE * terms, (name, found, expected, terms)


def _exact(measurement: Measurement) -> tuple[Measurement, Detail | None]:
    sums = dict.fromkeys(["max_over_std", "rel_l2", "rms", "norm_ratio", "mean_difference", "cosine", "detail"])
    zero = {"norm_reference": 0.0, "norm_candidate": 0.0}
    detail = measurement.detail
    if detail is not None:
        detail = dataclasses.replace(detail, **dict.fromkeys(REGIONS))
    return dataclasses.replace(measurement, **sums, **zero), detail


def _assert_same_regions(found: Detail, expected: Detail, squares: Array) -> None:
    for name in REGIONS:
        ours, theirs = getattr(found, name), getattr(expected, name)
        if ours is None or theirs is None:
            assert ours == theirs, name
            continue
        assert_near(ours.error, theirs.error, name=name)
        if ours.start == theirs.start:
            assert ours.shape == theirs.shape, name
        else:  # then both are the worst
            assert_near(_mean(squares, ours), _mean(squares, theirs), name=name)


def _mean(squares: Array, region: Region) -> float:
    """The mean square over the region's positions that are compared."""
    row, column = divmod(region.start, squares.shape[1])
    here = squares[row : row + region.shape[0], column : column + region.shape[1]]
    return math.fsum(here[~np.isnan(here)]) / max(1, int(np.count_nonzero(~np.isnan(here))))


def _normal(reference: Array, candidate: Array) -> tuple[Array, Array, float]:
    """Both sides as float64 of magnitude 1 at most, and the unit; NaN where a position is not compared."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        r, c = (pieces.components(np.asarray(side)).astype(np.float64) for side in (reference, candidate))
    compared = np.isfinite(r) & np.isfinite(c)
    unit = max(float(np.abs(side[compared]).max(initial=0.0)) for side in (r, c)) or 1.0
    return *(np.where(compared, side, np.nan) / unit for side in (r, c)), unit
