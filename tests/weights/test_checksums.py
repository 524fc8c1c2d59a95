"""The fast checksum is zlib's, and the largest magnitude is numpy's, however they are computed."""

import zlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstdrift.kernels import checksums

WAYS = [0, 1, 2]


@pytest.fixture(params=[*WAYS, "python"])
def way(request, monkeypatch):
    """Every way of folding that this processor has, and the one without a compiled module."""
    if request.param == "python":
        monkeypatch.setattr(checksums, "native", None)
        yield request.param
        return
    if checksums.native is None:
        pytest.skip("the native module is not compiled here")
    if checksums.native.folding(request.param) != request.param:
        checksums.native.folding(2)
        pytest.skip("this processor cannot fold so wide")
    yield request.param
    checksums.native.folding(2)


def test_the_native_module_is_used_here():
    assert checksums.native is not None, "run: pip install -e . (a C compiler is needed)"


def test_every_length_gives_the_checksum_of_zlib(way):
    data = np.random.default_rng(0).integers(0, 256, 3000, np.uint8)
    for size in [*range(600), 1023, 1024, 1025, 2999]:
        assert checksums.crc32(data[:size]) == zlib.crc32(data[:size]), size
        assert checksums.crc32(data[1 : size + 1], 12345) == zlib.crc32(data[1 : size + 1], 12345), size


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_every_length_gives_the_largest_element_without_its_highest_bit(way, dtype):
    data = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, 700, dtype, endpoint=True)
    mask = dtype(np.iinfo(dtype).max >> 1)
    for size in range(700):
        part = data[:size]
        assert checksums.scan(part) == (zlib.crc32(part), int((part & mask).max(initial=0))), size


@given(st.binary(max_size=2000), st.integers(0, 2**32 - 1))
def test_the_checksum_can_be_continued(data, start):
    array = np.frombuffer(data, np.uint8)
    middle = len(data) // 3
    assert checksums.crc32(array[middle:], checksums.crc32(array[:middle], start)) == zlib.crc32(data, start)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_one_nan_anywhere_is_above_infinity(way, dtype):
    for at in (0, 255, 256, 511, 998, 999):
        values = np.ones(1000, dtype)
        values[at] = np.nan
        infinite = int(np.array([np.inf], dtype).view(f"u{values.itemsize}")[0])
        assert checksums.scan(values)[1] > infinite
        values[at] = -np.inf
        assert checksums.scan(values)[1] == infinite


def test_an_array_with_gaps_is_refused():
    with pytest.raises(ValueError, match="not contiguous"):
        checksums.crc32(np.arange(10)[::2])


def test_a_width_that_no_element_has_is_refused():
    if checksums.native is None:
        pytest.skip("the native module is not compiled here")
    for width in (0, 3, 16):
        with pytest.raises(ValueError, match="width"):
            checksums.native.scan(b"12345678", width)
    with pytest.raises(ValueError, match="whole elements"):
        checksums.native.scan(b"123", 2)
