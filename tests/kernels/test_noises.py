"""Moved numbers: the native kernel gives the bits that numpy gives, and errors are spread as they are said to be."""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Iterator
from math import inf, nan, sqrt
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstdrift.kernels import noises

native: Any = importlib.import_module("firstdrift.kernels.noise")  # where it is not compiled, this fails loudly

FORMATS = {name: noises.format_of(name) for name in (np.float32, np.float16, ml_dtypes.bfloat16)}
SPECIAL = [0.0, -0.0, inf, -inf, nan, 1.0, -1.5, 65504.0, 65520.0, 2.0**-24, 1.5 * 2.0**-24, 2.0**-149, 2.0**-150,
           2.0**-133, 2.0**-126, 2.0**-127, 5e-324, 1.7976931348623157e308, 3.4028234663852886e38, 1 + 2.0**-23,
           1 + 2.0**-24, 1 + 2.0**-7, 1 + 2.0**-8, 1 + 2.0**-10, 1 + 2.0**-11]  # fmt: skip
NUMBERS = st.lists(st.floats() | st.sampled_from(SPECIAL) | st.floats(width=16) | st.floats(width=32), max_size=40)
KEYS = st.integers(0, 2**64 - 1)


@pytest.fixture(params=[0, 1, 2], ids=["plain", "AVX2", "AVX-512"], scope="module", autouse=True)
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run everything with each set of instructions."""
    if native.instructions(request.param) != request.param:
        pytest.skip("this machine has no such instructions")
    yield
    native.instructions(2)


def by_numpy(function: Any, *args: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noises, "native", None)
        return function(*args)


@settings(max_examples=500, deadline=None)
@given(NUMBERS, KEYS, st.sampled_from([2.0**-24, 2.0**-8, 2.0**-53, 1e300]), st.sampled_from([0.0, 2.0**-126, 1e-3]),
       st.sampled_from([None, *FORMATS.values()]))  # fmt: skip
def test_numbers_are_moved_to_the_same_bits(
    numbers: list[float], key: int, unit: float, least: float, held: noises.Format | None
) -> None:
    args = np.array(numbers, np.float64), key, unit, 1.45, least, held
    assert noises.moved(*args).tobytes() == by_numpy(noises.moved, *args).tobytes()


@settings(max_examples=300, deadline=None)
@given(NUMBERS, KEYS, st.data())
def test_sums_are_scattered_to_the_same_bits(numbers: list[float], key: int, data: st.DataObject) -> None:
    values = np.array(numbers, np.float64)
    errors = np.array(data.draw(st.lists(st.floats(), min_size=len(values), max_size=len(values))), np.float64)
    found = noises.scattered(values, errors, key)
    assert found.tobytes() == by_numpy(noises.scattered, values, errors, key).tobytes()


def test_large_arrays_of_any_shape_are_the_same() -> None:
    values = np.random.default_rng(0).standard_normal((3, 70_001))
    for held in (None, FORMATS[np.float32]):
        args = values, noises.key_of(1, 2), 2.0**-24, 1.45, 2.0**-126, held
        assert noises.moved(*args).tobytes() == by_numpy(noises.moved, *args).tobytes()
    args = values, values, noises.key_of(3)
    assert noises.scattered(*args).tobytes() == by_numpy(noises.scattered, *args).tobytes()


def test_a_key_gives_these_numbers_on_every_machine() -> None:
    assert noises.key_of(1, 2, 3) == 7702586659592502839
    moved = noises.moved(np.ones(3), 5, 1.0, 1.0) - 1
    assert moved.tolist() == [0.38676804583519697, -0.24769298429600894, 0.23270916566252708]
    scattered = noises.scattered(np.zeros(3), np.ones(3), 5)
    assert scattered.tolist() == [-1.2534593924875443, 0.23442561157209796, 0.11003651155425007]


def test_what_is_added_is_uniform_or_normal_and_unlike_its_neighbours() -> None:
    ones = np.ones(1 << 20)
    drawn = noises.moved(ones, noises.key_of(1), 2.0**-10, sqrt(12)) - 1
    assert np.sqrt(np.mean(drawn**2)) * 2**10 == pytest.approx(1, abs=0.003)
    assert np.histogram(drawn, 16)[0] == pytest.approx(np.full(16, 1 << 16), rel=0.02)
    other = noises.scattered(0 * ones, ones, noises.key_of(2))
    assert (other.mean(), other.std(), np.mean(other**4)) == pytest.approx((0, 1, 3 - 1.2 / 8), abs=0.015)
    assert np.abs(other).max() > 4
    rows = [drawn[1:], drawn[:-1], other[1:], other[:-1], noises.scattered(0 * ones, ones, noises.key_of(3))[1:]]
    assert np.abs(np.corrcoef(rows) - np.eye(5)).max() < 0.005


def test_keys_depend_on_every_number_and_on_their_order() -> None:
    numbers = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (2**64 - 1,), (1, 2, 3), (3, 2, 1)]
    assert len({noises.key_of(*one) for one in numbers}) == len(numbers)


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_a_format_has_stays_and_nothing_else(dtype: Any) -> None:
    """All numbers of 16 bits, and those halfway between them; of more bits some."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    every = bits.view(dtype) if np.dtype(dtype).itemsize == 2 else (bits.astype(np.uint32) * 65537).view(dtype)
    with np.errstate(all="ignore"):
        own = every.astype(np.float64)
        own = own[np.isfinite(own)]
        between = own * (1 + 2.0**-30)
        between = between[(between.astype(dtype).astype(np.float64) != between)]
    found = noises.moved(own, 1, 2.0**-8, 1.0, 0.0, FORMATS[dtype])
    assert found.tobytes() == own.tobytes()
    moved = noises.moved(between, 1, 2.0**-8, 1.0, 0.0, FORMATS[dtype])
    assert (moved != between).mean() > 0.99


def test_zeros_and_what_is_not_finite_stay_and_the_least_moves_small_numbers() -> None:
    values = np.array([0.0, -0.0, inf, -inf, nan, 1e-300])
    found = noises.moved(values, 1, 2.0**-24, 1.0, 0.5)
    assert found[:5].tobytes() == values[:5].tobytes()
    assert 1e-3 < abs(found[5]) < 0.25
    assert noises.scattered(values, np.array([0.0, 0, 1, nan, 1, inf]), 1)[2:].tobytes() == values[2:].tobytes()


def test_what_is_no_contiguous_float64_is_refused() -> None:
    for wrong in (np.ones((4, 3)).T, np.ones(4, np.float32), np.ones(8)[::2]):
        with pytest.raises(ValueError, match="contiguous"):
            noises.moved(wrong, 1, 1.0, 1.0)
        with pytest.raises(ValueError, match="contiguous"):
            noises.scattered(wrong, wrong, 1)
        with pytest.raises(ValueError, match="contiguous"):
            noises.scattered(np.ones(wrong.shape), wrong, 1)
    for shape in ((2,), (1, 3), (4,)):
        with pytest.raises(ValueError, match="deviations"):
            noises.scattered(np.ones(3), np.ones(shape), 1)


def test_the_c_functions_refuse_what_does_not_fit() -> None:
    ones, rest = np.ones(4), (1, 1.0, 1.0, 0.0, 0, 0.0, 0.0, 0.0)
    for out, values in (
        (ones[:3], ones),
        (ones, ones[:3]),
        (bytearray(7), bytes(7)),
        (np.zeros(33, np.uint8)[1:], ones),
    ):
        with pytest.raises(ValueError, match="equally many aligned doubles"):
            native.moved(out, values, *rest)
        with pytest.raises(ValueError, match="equally many aligned doubles"):
            native.scattered(out, values, values, 1)
    for wrong in (None, 3, [1.0], np.ones(8)[::2], bytes(32)):
        with pytest.raises((TypeError, BufferError, ValueError)):
            native.moved(wrong, ones, *rest)
        with pytest.raises((TypeError, BufferError, ValueError)):
            native.scattered(wrong, ones, ones, 1)


def test_reading_and_writing_stop_at_the_end_of_a_page() -> None:
    page = mmap.PAGESIZE
    for count in (0, 1, 3, 7, 8, 9, 31):
        values, out = (np.frombuffer(mmap.mmap(-1, page), np.float64)[page // 8 - count :] for _ in range(2))
        native.moved(out, values, 1, 1.0, 1.0, 1.0, *FORMATS[np.float32])
        native.scattered(out, values, values, 1)
        assert not out.any()


def test_numbers_are_moved_by_the_steps_of_their_format_alike_within_a_power_of_two() -> None:
    every = np.repeat([1.0, 1.5, 1.999, 2.0, -3.0, 0.75], 4096)
    off = np.abs(noises.moved(every, 3, 2.0**-8, 2.0) - every).reshape(6, -1).max(axis=1)
    assert off == pytest.approx(2.0**-8 * np.array([1, 1, 1, 2, 2, 0.5]), rel=0.01)
