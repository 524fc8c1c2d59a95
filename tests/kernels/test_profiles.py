"""Squared errors for their scales: the native kernel gives what numpy gives."""

from __future__ import annotations

import importlib
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstdrift.kernels import profiles

native: Any = importlib.import_module("firstdrift.kernels.profile")  # where it is not compiled, this fails loudly

SPECIAL = [0.0, -0.0, inf, -inf, nan, 1.0, 1e-300, 1e300, 3e38, 1e-45]


def by_numpy(*args: Any) -> profiles.Weighed:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiles, "native", None)
        return profiles.weighed(*args)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 40), st.integers(1, 1100), st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_both_give_the_same(height: int, width: int, seed: int, single: bool, odd: bool) -> None:
    random = np.random.default_rng(seed)
    ours = random.standard_normal((height, width)) * 10.0 ** random.integers(-6, 6, (height, 1))
    theirs = ours * (1 + 1e-6 * random.standard_normal(ours.shape))
    rows, columns = random.random(height), random.random(width)
    if odd:
        for one in (ours, theirs):
            one[random.random(one.shape) < 0.05] = random.choice(SPECIAL)
        rows[random.random(height) < 0.2] = random.choice([0.0, inf, 1e-320])
        columns[random.random(width) < 0.2] = random.choice([0.0, inf])
    with np.errstate(all="ignore"):
        ours, theirs = (one.astype(np.float32 if single else np.float64) for one in (ours, theirs))
    found, expected = profiles.weighed(ours, theirs, rows, columns), by_numpy(ours, theirs, rows, columns)
    assert (found.element, found.at) == (expected.element, expected.at)
    np.testing.assert_allclose(found.rows, expected.rows, rtol=1e-12)
    np.testing.assert_allclose(found.columns, expected.columns, rtol=1e-12)


def test_one_error_is_found_where_it_is() -> None:
    ours = np.ones((5, 700), np.float32)
    theirs = ours.copy()
    theirs[3, 600] = 3
    found = profiles.weighed(ours, theirs, np.ones(5), np.ones(700))
    assert (found.element, found.at) == (4.0, (3, 600))
    assert found.rows.tolist() == [0, 0, 0, 4 / 700, 0]
    assert found.columns[600] == 4 / 5


@pytest.mark.parametrize("wrong", ["rows", "ours", "unaligned", "empty"])
def test_buffers_that_do_not_fit_are_refused(wrong: str) -> None:
    rows, columns, ours = np.empty(3), np.empty(4), np.zeros(12)
    args = [rows, columns, ours, ours, np.ones(3), np.ones(4), False]
    match wrong:
        case "rows":
            args[4] = np.ones(2)
        case "ours":
            args[2] = np.zeros(11)
        case "unaligned":
            args[2] = np.frombuffer(bytes(97), np.uint8)[1:]
        case "empty":
            args = [np.empty(0), columns, np.zeros(0), np.zeros(0), np.ones(0), np.ones(4), False]
    with pytest.raises(ValueError, match="buffers hold"):
        native.weighed(*args)
