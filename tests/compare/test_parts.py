"""Every row, column and element is judged for its own size: a large number excuses itself, and nothing beside it."""

import numpy as np
import pytest
from tests.compare.making import normal, record

import firstdrift as fd
from firstdrift.judge.measure.scales import parts_of, worst_of

UNIT = 2.0**-24
LIMIT = 25 * UNIT


def product(rows=1.0, columns=1.0, seed=0):
    """A product of matrices in float32, whose rows and columns may be of any size, and the same in float64."""
    x, w = normal(96, 64, seed=seed) * np.float32(rows), normal(64, 80, seed=seed + 1) * np.float32(columns)
    return x.astype(np.float64) @ w, x @ w


def excess(expected, found):
    return worst_of(parts_of(expected, found, least=UNIT), LIMIT).excess


LARGE = {
    "as they are": (1.0, 1.0),
    "a row of 1e4": (np.where(np.arange(96)[:, None] == 3, 1e4, 1.0), 1.0),
    "a column of 1e4": (1.0, np.where(np.arange(80) == 7, 1e4, 1.0)),
    "rows and columns of all sizes": (np.exp(2 * normal(96, 1, seed=8)), np.exp(2 * normal(1, 80, seed=9))),
}


@pytest.mark.parametrize(("rows", "columns"), LARGE.values(), ids=LARGE)
def test_rounding_is_within_noise_whatever_the_sizes_of_rows_and_columns(rows, columns):
    assert excess(*product(rows, columns)) < 1


CHANGES = {
    "row": np.s_[5],
    "column": np.s_[:, 11],
    "element": np.s_[40, 2],
    "all but what is large": np.s_[4:, 8:],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(("rows", "columns"), LARGE.values(), ids=LARGE)
def test_a_part_that_is_off_is_seen_beside_whatever_is_large(rows, columns, change):
    expected, found = product(rows, columns)
    found[change] *= np.float32(1.001)
    assert excess(expected, found) > 1


def test_one_massive_element_hides_nothing():
    expected = normal(128, 64).astype(np.float64)
    expected[0, 0] = 1e8
    found = expected.copy()
    found[9, 9] += 1e-3
    part = worst_of(parts_of(expected, found, least=UNIT), LIMIT)
    assert (part.where, part.excess > 1) == ("element 9, 9", True)


def test_the_same_rows_have_the_same_parts_in_every_shape():
    expected, found = product()
    found[5] *= np.float32(1.001)
    shapes = [(96, 80), (1, 96, 80), (4, 24, 80), (2, 6, 8, 80)]
    worst = [worst_of(parts_of(expected.reshape(s), found.reshape(s), least=UNIT), LIMIT) for s in shapes]
    assert len({(one.where, one.error) for one in worst}) == 1


def test_what_is_not_finite_is_left_to_others():
    expected, found = product()
    expected[2, 2], found[2, 2] = np.inf, np.inf
    assert excess(expected, found) < 1


@pytest.mark.parametrize("shape", [(), (1,), (3,), (0, 4), (5, 1)])
def test_tensors_of_few_numbers_are_judged_as_a_whole(shape):
    x = np.ones(shape)
    assert parts_of(x, x, least=UNIT) is None if x.size == 0 else excess(x, x * (1 + 1e-3)) > 1


def test_a_part_that_nobody_can_explain_is_inconclusive(tmp_path):
    found = normal(1024, 64)
    found[0, 0] = 1e6
    other = found.copy()
    other[100, 10] += np.float32(1e-3)
    result = fd.diff(record(tmp_path / "r", {"fwd a": found}), record(tmp_path / "c", {"fwd a": other}))
    assert (result.verdict, result.exit_code) == ("inconclusive", 2)
    assert "element 100, 10" in result.pairs[0].reason


@pytest.mark.parametrize("given", ["a", "a.out", "*"])
def test_nan_on_both_sides_is_never_green_unless_it_is_meant(tmp_path, given):
    array = normal(8, 16)
    array[2] = np.nan
    sides = [record(tmp_path / side, {"fwd a": array}) for side in "rc"]
    result = fd.diff(*sides)
    assert (result.verdict, result.exit_code) == ("not comparable", 2)
    assert fd.diff(*sides, allow_nan=given).verdict == "same"
    assert fd.diff(*sides, allow_nan="b").exit_code == 2


def test_a_drift_beside_nan_is_still_found(tmp_path):
    array, other = normal(8, 16), -normal(8, 16)
    array[2] = other[2] = np.nan
    result = fd.diff(record(tmp_path / "r", {"fwd a": array}), record(tmp_path / "c", {"fwd a": other}), allow_nan="a")
    assert result.exit_code == 1
