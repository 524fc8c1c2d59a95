"""The definition against an oracle that shares nothing with it, and the cases people get wrong."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels import oracle
from tests.kernels import pairs as p

from firstdrift.kernels import Detail, Measurement, definition, measure
from firstdrift.kernels.pieces import matrix_shape

BF16 = np.dtype(ml_dtypes.bfloat16)


def detail_of(measurement: Measurement) -> Detail:
    assert measurement.detail is not None
    return measurement.detail


def close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= 1e-12 * max(abs(a), abs(b)) + 1e-300
    return bool(a == b)


@settings(max_examples=300, deadline=None)
@given(p.pairs(p.FLOATS))
def test_cheap_numbers_agree_with_the_oracle(pair: tuple[p.Array, p.Array]) -> None:
    reference, candidate = map(p.moderate, pair)
    expected = oracle.compare(reference, candidate)
    found = dataclasses.asdict(definition.measure(reference, candidate))
    size = math.hypot(expected["norm_reference"], expected["norm_candidate"])
    for name, value in expected.items():
        if name == "cosine" and value is not None:
            assert found[name] == pytest.approx(value, abs=1e-12)
        elif name == "mean_difference" and value is not None:
            assert found[name] == pytest.approx(value, abs=1e-13 * size)
        elif name == "max_over_std" and value is not None:
            assert found[name] == pytest.approx(value, rel=1e-9)
        else:
            assert close(found[name], value), name


@settings(max_examples=200, deadline=None)
@given(p.pairs(p.FLOATS))
def test_ulp_distances_and_sign_flips_agree_with_the_oracle(pair: tuple[p.Array, p.Array]) -> None:
    detail = definition.measure(*pair).detail
    distances = sorted(oracle.ulp_distances(*pair))
    if detail is None:
        assert not any(distances)
        return
    assert detail.max_ulp is not None
    assert detail.p999_ulp is not None
    assert detail.max_ulp == max(distances, default=0)
    assert detail.sign_flips == oracle.sign_flips(*pair)
    assert detail.ulp_octaves is not None
    assert sum(detail.ulp_octaves) == len(distances)
    for octave, count in enumerate(detail.ulp_octaves):
        assert count == sum(distance.bit_length() == octave for distance in distances)
    if distances:
        exact = distances[math.ceil(0.999 * len(distances)) - 1]
        assert exact <= detail.p999_ulp <= min(detail.max_ulp, exact + exact // 8)


@settings(max_examples=200, deadline=None)
@given(p.pairs(p.FLOATS[1:]))
def test_worst_regions_agree_with_the_oracle(pair: tuple[p.Array, p.Array]) -> None:
    measurement = definition.measure(*pair)
    if measurement.detail is None:
        return
    detail = measurement.detail
    errors = oracle.region_errors(*pair, detail.matrix)
    found = {"row": detail.worst_row, "column": detail.worst_column, "block": detail.worst_block}
    for kind, region in found.items():
        if not errors[kind]:
            assert region is None
            continue
        assert region is not None
        worst = max(errors[kind].values())
        assert close(region.error, worst)
        assert close(errors[kind][region.start], worst)


@pytest.mark.parametrize(
    ("shape", "matrix"),
    [
        ((), (1, 1)),
        ((5,), (1, 5)),
        ((0, 5), (0, 0)),
        ((1000, 10), (1000, 10)),
        ((1000, 1), (1, 1000)),
        ((32, 64, 7, 7), (32, 3136)),
        ((2, 10, 4, 32), (20, 128)),
        ((2, 12, 10, 64), (240, 64)),
        ((4, 1, 3, 1), (4, 3)),
    ],
    ids=str,
)
def test_matrix_view(shape: tuple[int, ...], matrix: tuple[int, int]) -> None:
    assert matrix_shape(shape) == matrix


def test_one_wrong_channel_token_and_tile_are_named_although_the_norm_hides_them() -> None:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((4, 100, 256)).astype(np.float32)
    channel, token, tile = reference.copy(), reference.copy(), reference.copy()
    channel[..., 77] *= 1.01
    token[2, 33] *= 1.01
    tile.reshape(400, 256)[64:128, 128:192] *= 1.01
    worst = [detail_of(measure(reference, side)) for side in (channel, token, tile)]
    column, row, block = worst[0].worst_column, worst[1].worst_row, worst[2].worst_block
    assert column is not None
    assert (column.start, column.shape) == (77, (400, 1))
    assert row is not None
    assert (row.start, row.shape) == (233 * 256, (1, 256))
    assert block is not None
    assert (block.start, block.shape) == (64 * 256 + 128, (64, 64))
    for region in (column, row, block):
        assert region.error == pytest.approx(0.01, rel=0.2)
    assert all((measure(reference, side).rel_l2 or 1) < 0.0025 for side in (channel, token, tile))


def test_matrices_wider_than_65536_have_no_column() -> None:
    reference = np.zeros((2, 65_537), np.float32)
    assert detail_of(measure(reference, reference + 1)).worst_column is None
    assert detail_of(measure(reference[:, 1:], reference[:, 1:] + 1)).worst_column is not None


def test_nan_on_one_side_is_counted_placed_and_left_out() -> None:
    reference = np.array([1.0, 2.0, 3.0, np.inf, np.nan, -np.inf], np.float32)
    candidate = np.array([1.0, np.nan, 4.0, -np.inf, np.nan, -np.inf], np.float32)
    found = measure(reference, candidate)
    assert (found.compared, found.nan_reference, found.nan_candidate) == (2, 1, 2)
    assert (found.inf_reference, found.inf_candidate) == (2, 2)
    assert (found.nonfinite_mismatches, found.nonfinite_mismatch_index) == (2, 1)
    assert not found.nonfinite_agree
    assert (found.max_abs, found.max_abs_index) == (1.0, 2)
    assert found.rel_l2 == pytest.approx(1 / math.sqrt(10))


def test_a_tensor_of_nan_has_no_errors_rather_than_none_at_all() -> None:
    found = measure(np.ones(9, np.float32), np.full(9, np.nan, np.float32))
    assert (found.compared, found.differing, found.nonfinite_mismatches) == (0, 9, 9)
    assert found.rel_l2 is found.rms is found.cosine is found.norm_ratio is found.mean_difference is None
    assert detail_of(found).worst_row is None


def test_signalling_nan_payloads_and_zero_signs_are_bits() -> None:
    quiet = np.array([0x7FC00000, 0, 0x7FA00000], np.uint32).view(np.float32)
    other = np.array([0x7FC00001, 0x80000000, 0x7FA00000], np.uint32).view(np.float32)
    found = measure(quiet, other)
    assert (found.differing, found.nonfinite_mismatches, found.max_abs) == (2, 0, 0.0)
    assert found.max_abs_index is None
    assert (detail_of(found).max_ulp, detail_of(found).sign_flips) == (0, 0)
    assert measure(quiet, quiet.copy()).bit_equal
    assert measure(quiet, quiet.copy()).detail is None


def test_subnormals_are_numbers() -> None:
    tiny = np.array([1, 2, 0x80000001], np.uint32).view(np.float32)
    found = measure(tiny, np.zeros(3, np.float32))
    assert found.max_abs == 2 * 2.0**-149
    assert detail_of(found).max_ulp == 2
    assert found.norm_reference == pytest.approx(math.sqrt(6) * 2.0**-149, rel=1e-15, abs=0)


def test_zero_reference_gives_an_infinite_relative_error_and_no_cosine() -> None:
    zero, one = np.zeros(5), np.ones(5)
    assert measure(zero, one).rel_l2 == math.inf
    assert measure(zero, one).cosine is None
    assert measure(zero, one).norm_ratio is None
    assert measure(zero, -zero).rel_l2 == 0.0
    assert measure(one, zero).norm_ratio == 0.0


def test_a_difference_is_relative_to_its_own_element_or_to_1e_12() -> None:
    reference = np.array([1000.0, -0.5, 2.0, 4.0, 0.0])
    for next_to_zero, largest in ((0.0, 0.5), (1e-15, 0.5), (1e-9, 1000.0)):
        off = np.array([1.0, 0.25, 0.0, -0.5, next_to_zero])
        assert measure(reference, reference + off).max_rel == pytest.approx(largest, rel=1e-12)
    assert measure(reference.astype(int), reference.astype(int) + 3).max_rel == 3e12
    assert measure(reference, reference * 3).max_rel == 2.0


def test_the_largest_difference_is_counted_in_standard_deviations_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    reference = 3 * rng.standard_normal((50, 80)) + 1
    candidate = reference.copy()
    candidate[3, 3] += 0.6
    assert measure(reference, candidate).max_over_std == pytest.approx(0.6 / reference.std(), rel=1e-12)
    far = measure(reference + 1e9, candidate + 1e9)  # whose squares do not tell its deviation
    assert far.max_over_std == pytest.approx(0.6 / reference.std(), rel=1e-6)
    candidate[0, 0] = np.nan  # is not compared, and neither is what the reference has there
    assert measure(reference, candidate).max_over_std == pytest.approx(0.6 / reference.ravel()[1:].std(), rel=1e-12)
    assert measure(np.ones(5), np.full(5, 2.0)).max_over_std == math.inf


def test_equal_sides_and_sides_without_a_number_have_their_relative_differences() -> None:
    one, empty = np.ones(5, np.float32), np.zeros(0, np.float32)
    assert (measure(one, one.copy()).max_rel, measure(one, one.copy()).max_over_std) == (0.0, 0.0)
    for pair in ((empty, empty), (one, one * np.float32(np.nan))):
        assert (measure(*pair).max_rel, measure(*pair).max_over_std) == (None, None)
    cheap = measure(one, 2 * one, full=False)  # differ, and were not asked for
    assert (cheap.max_rel, cheap.max_over_std) == (None, None)


def test_the_mean_difference_says_how_much_higher_the_candidate_is() -> None:
    assert measure(np.zeros(4), np.full(4, 0.25)).mean_difference == 0.25


def test_float64_squares_neither_overflow_nor_vanish() -> None:
    for power in (1e300, 1e160, 1e-160, 1e-300):
        reference = np.array([3.0, 4.0]) * power
        found = measure(reference, reference * 2)
        assert found.norm_reference == pytest.approx(5 * power, rel=1e-14, abs=0)
        assert found.rel_l2 == pytest.approx(1.0)
        assert found.rms == pytest.approx(5 * power / math.sqrt(2), rel=1e-14, abs=0)
        assert found.mean_difference == pytest.approx(3.5 * power, rel=1e-14, abs=0)
        row = detail_of(found).worst_row
        assert row is not None
        assert row.error == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", p.INTEGERS, ids=str)
def test_integers_are_compared_exactly(dtype: np.dtype[Any]) -> None:
    if dtype.kind == "b":
        low, high = 0, 1
    else:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    reference = np.array([low, high, high, low], dtype)
    candidate = np.array([high, low, high, low], dtype)
    found = measure(reference, candidate)
    assert (found.differing, found.max_abs, found.max_abs_index) == (2, high - low, 0)
    assert (found.reference_at_max, found.candidate_at_max) == (low, high)
    assert detail_of(found).max_ulp is None


def test_neighbouring_int64_beyond_float64_are_told_apart() -> None:
    big = np.array([2**62, 2**62 + 1], np.int64)
    found = measure(big, big[::-1])
    assert (found.differing, found.max_abs) == (2, 1)


def test_signed_and_unsigned_64_bit_are_compared_exactly() -> None:
    found = measure(np.array([2**64 - 1, 7], np.uint64), np.array([-(2**63), 7], np.int64))
    assert (found.differing, found.max_abs) == (1, 2**64 - 1 + 2**63)
    assert measure(np.array([True, False]), np.array([1, 0], np.int64)).bit_equal


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(p.FLOATS), st.sampled_from(p.FLOATS), p.shapes, p.seeds)
def test_two_dtypes_are_compared_in_the_wider(
    left: np.dtype[Any], right: np.dtype[Any], shape: tuple[int, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    reference, candidate = p.ordinary(rng, left, shape), p.ordinary(rng, right, shape)
    found = definition.measure(reference, candidate)
    wide = definition.measure(reference.astype(np.float64), candidate.astype(np.float64))
    ignored = {"detail": None}
    assert dataclasses.replace(found, **ignored) == dataclasses.replace(wide, **ignored)


def test_ulps_of_two_dtypes_are_counted_in_the_coarser() -> None:
    exact = np.array([1.0, 1 + 2**-8, 3e38, -1.0], np.float32)
    rounded = np.array([1 + 2**-7, 1.0, 1.0, 1.0]).astype(BF16)
    for pair in ((exact, rounded), (rounded, exact)):
        detail = detail_of(measure(*pair))
        assert detail.ulp_octaves is not None
        assert detail.ulp_octaves[:2] == (1, 1)  # a tie rounds to even, 1.0; one step of bfloat16
        assert detail.sign_flips == 1
    half = np.array([65504.0], np.float16)
    assert detail_of(measure(np.array([1e30], np.float32), half)).max_ulp == 0  # beyond the range: its largest


@pytest.mark.parametrize("dtype", p.FLOATS, ids=str)
def test_the_bits_of_opposite_signs_wrap_around_and_are_counted_through_zero(dtype: np.dtype[Any]) -> None:
    largest = ml_dtypes.finfo(dtype).max
    for pair in ((0, -largest), (largest, -0.0), (-largest, largest), (largest, -largest)):
        reference, candidate = (np.array([side]).astype(dtype) for side in pair)
        detail = detail_of(measure(reference, candidate))
        assert [detail.max_ulp] == oracle.ulp_distances(reference, candidate)
        assert [definition.measure(reference, candidate).detail] == [detail]
        assert detail.sign_flips == (0 not in pair)


def test_a_value_equal_in_two_dtypes_is_equal() -> None:
    values = np.array([1.0, -0.0, np.nan, np.inf, -2.5])
    assert measure(values.astype(np.float32), values.astype(BF16)).bit_equal
    assert measure(values, abs(values)).differing == 2


def test_complex_tensors_are_their_components() -> None:
    reference = np.array([1 + 2j, 3 - 4j], np.complex64)
    candidate = np.array([1 + 2j, 3 + 4j], np.complex64)
    found = measure(reference, candidate)
    assert (found.count, found.max_abs, found.max_abs_index) == (4, 8.0, 3)
    assert found.norm_reference == pytest.approx(math.sqrt(30))
    assert measure(reference[::-1], candidate[::-1]).max_abs_index == 1


def test_broadcast_and_big_endian_tensors() -> None:
    row = np.arange(70, dtype=np.float32)
    spread = np.broadcast_to(row, (100, 70))
    assert measure(spread, np.tile(row, (100, 1))).bit_equal
    shifted = measure(spread.astype(">f4"), spread + np.float32(1))
    assert (shifted.max_abs, shifted.differing) == (1.0, 7000)
    assert detail_of(shifted).max_ulp == detail_of(measure(spread.copy(), spread + np.float32(1))).max_ulp


def test_unequal_shapes_and_things_without_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shapes differ: reference \(2, 3\), candidate \(3, 2\)"):
        measure(np.zeros((2, 3)), np.zeros((3, 2)))
    for wrong in (
        np.array(["a"]),
        np.array([None]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(1, np.longdouble),
    ):
        with pytest.raises(TypeError, match="cannot measure tensors of dtype"):
            measure(wrong, wrong)


def test_empty_tensors_are_equal_and_cover_nothing() -> None:
    found = measure(np.zeros((0, 7), np.float32), np.zeros((0, 7), np.float32))
    assert found.bit_equal
    assert (found.count, found.compared, found.rel_l2, found.max_abs) == (0, 0, None, 0.0)


def test_sampling_takes_every_eighth_run_of_every_column() -> None:
    """One wrong column of a tall matrix is in the sample an eighth of the times it is in the tensor."""
    reference = np.ones((1 << 14, 64), np.float32)
    candidate = reference.copy()
    candidate[:, 5] = 1.5
    detail = detail_of(measure(reference, candidate))
    assert detail.ulp_octaves is not None
    assert sum(detail.ulp_octaves) == reference.size // 8
    assert detail.ulp_octaves[-1] == len(reference) // 8
    wide = np.ones((256, 4096), np.float32)
    for column in (0, 64, 4095):
        candidate = wide.copy()
        candidate[:, column] = 1.5
        octaves = detail_of(measure(wide, candidate)).ulp_octaves
        assert octaves is not None
        assert octaves[-1] == 256 // 8
