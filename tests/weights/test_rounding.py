"""A number in another dtype is rounded once, to nearest even, and counted; none becomes infinite."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.weights.samples import bits

from firstdrift.core.dtypes import ML_NAMES, numpy_dtype
from firstdrift.errors import FormatError
from firstdrift.weights.dtype_rounding import as_dtype

NARROW = ["f16", "bf16", "f8e4m3fn", "f8e5m2"]


@cache
def every_number(dtype):
    """All finite numbers of a narrow dtype, ascending."""
    bytes_ = np.dtype(numpy_dtype(dtype)).itemsize
    with np.errstate(invalid="ignore"):  # of signalling NaN
        numbers = np.arange(256**bytes_, dtype=f"u{bytes_}").view(numpy_dtype(dtype)).astype(np.float64)
    return np.unique(numbers[np.isfinite(numbers)])


def last_bit(number, dtype):
    return int(np.array(number).astype(numpy_dtype(dtype)).view(f"u{numpy_dtype(dtype).itemsize}")) & 1


@pytest.mark.parametrize("dtype", NARROW)
@given(data=st.data())
def test_rounding_is_to_nearest_even_from_float64(dtype, data):
    """Ties, and what lies just beside them, between any two neighbours."""
    numbers = every_number(dtype)
    at = data.draw(st.integers(0, len(numbers) - 2))
    low, high = numbers[at], numbers[at + 1]
    middle = (low + high) / 2
    value = data.draw(st.sampled_from([middle, np.nextafter(middle, low), np.nextafter(middle, high), low]))
    found = float(as_dtype(np.array([value]), dtype, "w")[0].astype(np.float64)[0])
    if value == middle:
        assert found == min((low, high), key=lambda number: last_bit(number, dtype))
    else:
        assert found == (low if abs(value - low) < abs(value - high) else high)


def test_two_roundings_are_not_one():
    just_above_a_tie = np.array([1 + 2**-8 + 2**-40])
    assert float(just_above_a_tie.astype(ml_dtypes.bfloat16)[0]) == 1.0  # the library goes through float32
    assert float(as_dtype(just_above_a_tie, "bf16", "w")[0][0]) == 1 + 2**-7


def test_what_was_rounded_is_counted():
    array = np.array([1.0, 1 + 2**-12, -0.0, 2**-25, np.nan, np.inf], np.float32)
    found, rounding = as_dtype(array, "f16", "w")
    assert (rounding.changed, rounding.largest) == (2, 2**-12)
    assert np.signbit(found[2])
    assert np.isnan(found[4])
    assert np.isinf(found[5])


@pytest.mark.parametrize(
    ("value", "dtype"), [(1e6, "f16"), (1e39, "f32"), (1e39, "bf16"), (500.0, "f8e4m3fn"), (np.inf, "f8e4m3fn")]
)
def test_a_number_that_does_not_fit_is_refused_by_name(value, dtype):
    with pytest.raises(FormatError, match=f"tensor 'w': 1 of its values, such as .*, are beyond {dtype}"):
        as_dtype(np.array([0.0, value]), dtype, "tensor 'w'")


@pytest.mark.parametrize("source", [*ML_NAMES, "f16"])
def test_widening_is_exact_for_every_number(source):
    dtype = numpy_dtype(source)
    array = np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)
    wide, rounding = as_dtype(array, "f32", "w")
    assert rounding.changed == 0
    finite = np.isfinite(wide)
    with np.errstate(invalid="ignore"):
        back = wide.astype(dtype)
    assert bits(back[finite]) == bits(array[finite])


def test_bfloat16_keeps_what_a_nan_carries():
    array = np.array([0x7FC1, 0xFF81], np.uint16).view(ml_dtypes.bfloat16)
    assert as_dtype(array, "f32", "w")[0].view(np.uint32).tolist() == [0x7FC10000, 0xFF810000]


def test_whole_numbers_change_dtype_only_exactly():
    assert as_dtype(np.array([255], np.uint16), "i32", "w")[0].dtype == np.int32
    with pytest.raises(FormatError, match="1 of its values do not fit u8"):
        as_dtype(np.array([255, 256], np.uint16), "u8", "w")
