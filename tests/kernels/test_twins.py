"""The native kernel and the definition give the same numbers (see `closeness`), whatever they are given."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels import pairs as p
from tests.kernels.closeness import assert_same_measurement, assert_same_stats

from firstdrift import kernels
from firstdrift.kernels import definition

native = importlib.import_module("firstdrift.kernels.native")  # where it is not compiled, this fails loudly


@pytest.fixture(params=["avx2", "plain"], scope="module", autouse=True)
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run everything with and without AVX2."""
    if native.use_avx2(request.param == "avx2") != (request.param == "avx2"):
        pytest.skip("no AVX2 on this machine")
    yield request.param
    native.use_avx2(True)


def assert_twins(reference: p.Array, candidate: p.Array) -> None:
    for full in (True, False):
        expected = definition.measure(reference, candidate, full=full)
        found = kernels.measure(reference, candidate, full=full)
        assert_same_measurement(found, expected, reference, candidate)
        assert kernels.measure(reference, candidate, full=full, threads=3) == found


@settings(max_examples=600, deadline=None)
@given(p.pairs(p.NATIVE + p.COMPLEX))
def test_measurements_are_the_same(pair: tuple[p.Array, p.Array]) -> None:
    assert_twins(*pair)


@settings(max_examples=300, deadline=None)
@given(p.pairs(p.NATIVE + p.COMPLEX), st.sampled_from(p.LAYOUTS), st.sampled_from(p.LAYOUTS))
def test_layout_does_not_change_a_measurement(pair: tuple[p.Array, p.Array], left: str, right: str) -> None:
    reference, candidate = pair
    sides = p.restride(reference, left), p.restride(candidate, right)
    for kernel in (kernels, definition):
        assert kernel.measure(*sides) == kernel.measure(reference, candidate)


@settings(max_examples=300, deadline=None)
@given(p.pairs(p.FLOATS + p.COMPLEX + p.INTEGERS), st.sampled_from(p.LAYOUTS))
def test_statistics_are_the_same(pair: tuple[p.Array, p.Array], layout: str) -> None:
    array = p.restride(pair[0], layout)
    assert_same_stats(kernels.stats(array), definition.stats(array))


@settings(max_examples=200, deadline=None)
@given(p.pairs(p.NATIVE))
def test_every_instruction_set_gives_the_same_bits(instructions: str, pair: tuple[p.Array, p.Array]) -> None:
    found = []
    for avx2 in (False, True):
        native.use_avx2(avx2)
        found.append((kernels.measure(*pair), kernels.stats(pair[1])))
    native.use_avx2(instructions == "avx2")
    assert found[0] == found[1]


@settings(max_examples=300, deadline=None)
@given(p.pairs(p.NATIVE), st.data())
def test_both_kernels_call_equal_what_has_the_same_bits_and_nothing_else(
    pair: tuple[p.Array, p.Array], data: st.DataObject
) -> None:
    array = np.ascontiguousarray(pair[0])
    other = array.copy()
    for kernel in (kernels, definition):
        assert kernel.measure(array, other).bit_equal
    if array.size:
        flat = other.reshape(-1).view(np.uint8)
        flat[data.draw(st.integers(0, flat.size - 1))] ^= 1 << data.draw(st.integers(0, 7))
        for kernel in (kernels, definition):
            assert not kernel.measure(array, other).bit_equal


BIG = [
    (3_000_000,),
    (70, 70_000),
    (1, 65_536 + 64),
    (4200, 300),
    (70_000, 20),
    (33, 65_537),
    (1024, 1024),
    (300, 8192),
]


@pytest.mark.parametrize("shape", BIG, ids=str)
@pytest.mark.parametrize("dtype", p.NATIVE, ids=str)
def test_large_tensors_are_equal_and_do_not_depend_on_the_thread_count(
    shape: tuple[int, ...], dtype: np.dtype[np.float64]
) -> None:
    """More than one band, sampled distances, rows longer than a strip, ties in the rounder dtypes."""
    rng = np.random.default_rng(len(shape))
    reference = rng.standard_normal(shape, np.float32).astype(dtype)
    candidate = p.nudged(rng, reference)
    candidate.reshape(-1)[:: candidate.size // 7] = np.nan
    found = kernels.measure(reference, candidate)
    assert_same_measurement(found, definition.measure(reference, candidate), reference, candidate)
    for threads in (2, 5, 40):
        assert kernels.measure(reference, candidate, threads=threads) == found
    assert_same_stats(kernels.stats(candidate), definition.stats(candidate))


def test_of_rows_that_are_permutations_of_each_other_any_is_the_worst() -> None:
    """Their sums differ in the last bits."""
    rng = np.random.default_rng(5)
    row = rng.standard_normal(1000)
    reference = np.stack([rng.permutation(row) for _ in range(200)])
    assert_twins(reference, np.zeros_like(reference))
    assert_twins(reference.T.copy(), np.zeros_like(reference.T))


@pytest.mark.parametrize("shape", [(70, 70_000), (2, 3_000_000), (70_000, 70)], ids=str)
def test_of_equal_differences_the_first_in_flat_order_is_named(shape: tuple[int, int]) -> None:
    """Not the first that the walk through strips and bands comes across."""
    reference = np.zeros(shape, np.float32)
    candidate = reference.copy()
    candidate[1, 5] = candidate[-1, 0] = candidate[0, -3] = 1.0
    for threads in (1, 2):
        assert kernels.measure(reference, candidate, threads=threads).max_abs_index == shape[1] - 3
    assert definition.measure(reference, candidate).max_abs_index == shape[1] - 3
    candidate[1, 5] = candidate[-1, 0] = candidate[0, -3] = np.nan
    assert kernels.measure(reference, candidate).nonfinite_mismatch_index == shape[1] - 3
    assert definition.measure(reference, candidate).nonfinite_mismatch_index == shape[1] - 3


def test_the_largest_relative_difference_is_found_wherever_it_is() -> None:
    """Runs are passed over that cannot hold it; the largest may come last, next to zeros or not finite ones."""
    rng = np.random.default_rng(3)
    for dtype in p.NATIVE:
        reference = rng.standard_normal((70, 1000)).astype(dtype)
        for place in (0, 63, 64, 35_000, 69_999):
            for value in (1e-3, 0.0, 100.0):
                ours, theirs = reference.copy(), p.nudged(rng, reference)
                ours.reshape(-1)[place], theirs.reshape(-1)[place] = value, 3 * value + 1e-5
                theirs.reshape(-1)[[place - 1, place - 20]] = np.nan, np.inf
                a, b = ours.astype(np.float64), theirs.astype(np.float64)
                with np.errstate(invalid="ignore"):
                    relative = np.abs(b - a) / np.maximum(np.abs(a), 1e-12)
                assert kernels.measure(ours, theirs).max_rel == relative[np.isfinite(relative)].max()
                assert_twins(ours, theirs)


def test_a_scaled_tensor_has_one_relative_difference() -> None:
    for dtype in p.NATIVE:
        reference = np.random.default_rng(4).standard_normal((40, 300)).astype(dtype)
        assert kernels.measure(reference, reference * 2).max_rel == 1.0
        assert_twins(reference, reference * 2)


def test_extreme_float64_values_are_scaled_in_both() -> None:
    rng = np.random.default_rng(1)
    for power in (300, 160, -170, -310):
        reference = rng.standard_normal((40, 70)) * 10.0**power
        assert_twins(reference, reference * (1 + 1e-9 * rng.standard_normal((40, 70))))
        assert_same_stats(kernels.stats(reference), definition.stats(reference))


def test_every_half_precision_value_is_read_right() -> None:
    for dtype in p.NATIVE[2:]:
        every = np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(256, 256)
        assert_twins(every, every[::-1].copy())
        assert_twins(every, np.roll(every, 1))
        assert_same_stats(kernels.stats(every), definition.stats(every))
