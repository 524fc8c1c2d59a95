"""Statistics of one tensor against exact arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tests.kernels import pairs as p

from firstdrift.kernels import definition, stats


@settings(max_examples=200, deadline=None)
@given(p.pairs(p.FLOATS))
def test_statistics_agree_with_exact_arithmetic(pair: tuple[p.Array, p.Array]) -> None:
    array = p.moderate(pair[0])
    values = [float(x) for x in array.reshape(-1)]
    finite = [x for x in values if math.isfinite(x)]
    found = stats(array)
    assert found.count == len(values)
    assert found.nan_count == sum(map(math.isnan, values))
    assert found.inf_count == sum(map(math.isinf, values))
    assert found.finite_count == len(finite)
    if not finite:
        assert (found.min, found.max, found.mean, found.std, found.l2) == (None, None, None, None, 0.0)
        return
    assert (found.min, found.max) == (min(finite), max(finite))
    mean = math.fsum(finite) / len(finite)
    largest = max(map(abs, finite))
    assert found.mean == pytest.approx(mean, rel=1e-12, abs=1e-13 * largest)
    assert found.l2 == pytest.approx(math.sqrt(math.fsum(x * x for x in finite)), rel=1e-12, abs=0)
    variance = math.fsum((x - mean) ** 2 for x in finite) / len(finite)
    assert found.std == pytest.approx(math.sqrt(variance), rel=1e-7, abs=1e-15 * largest)


def test_extreme_values_neither_overflow_nor_vanish() -> None:
    for power in (1e300, 1e160, 1e-160, 1e-300):
        found = stats(np.array([3.0, 4.0, np.nan]) * power)
        assert found.l2 == pytest.approx(5 * power, rel=1e-14, abs=0)
        assert found.mean == pytest.approx(3.5 * power, rel=1e-14, abs=0)
        assert found.std == pytest.approx(0.5 * power, rel=1e-14, abs=0)


def test_a_spread_far_smaller_than_the_mean_keeps_its_digits() -> None:
    values = 1e6 + np.arange(1000) / 16
    assert stats(values.astype(np.float32)).std == pytest.approx(float(values.std()), rel=1e-9, abs=0)
    assert stats(np.full(1000, 1e9)).std == 0.0


@pytest.mark.parametrize("dtype", p.INTEGERS[:-1], ids=str)
def test_integer_extremes_are_exact(dtype: np.dtype[Any]) -> None:
    info = np.iinfo(dtype)
    found = stats(np.array([info.min, info.max, 3], dtype))
    assert (found.min, found.max) == (info.min, info.max)
    assert type(found.min) is int


def test_booleans_and_complex_numbers() -> None:
    found = stats(np.array([True, False, True]))
    assert (found.min, found.max, found.mean) == (0, 1, pytest.approx(2 / 3))
    found = stats(np.array([3 + 4j, complex(0, math.inf)]))
    assert (found.count, found.inf_count, found.l2, found.max) == (4, 1, 5.0, 4.0)


def test_empty_and_scalar_tensors() -> None:
    assert stats(np.zeros((3, 0))).mean is None
    assert stats(np.float32(2)).l2 == 2.0


def test_a_late_first_finite_value_is_found() -> None:
    values = np.full(200_000, np.nan, np.float32)
    values[150_000:] = 5.0
    values[-1] = 6.0
    for found in (stats(values), definition.stats(values)):
        assert (found.min, found.max, found.nan_count) == (5.0, 6.0, 150_000)
        assert found.std == pytest.approx(math.sqrt(49_999) / 50_000)


def test_things_without_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="cannot measure tensors of dtype"):
        stats(np.array(["a"]))
