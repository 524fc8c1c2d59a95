"""Quantized blocks mean what the library that defines them says, and APR's own what their description says."""

import struct

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.weights.samples import bits

from firstdrift.errors import FormatError
from firstdrift.weights.formats import quantized_blocks
from firstdrift.weights.formats.quantized_blocks import GEOMETRY, dequantize, encode_blocks, quantized_bytes, row_layout

KINDS = {"q4_k": gguf.GGMLQuantizationType.Q4_K, "q6_k": gguf.GGMLQuantizationType.Q6_K}


@pytest.mark.parametrize("dtype", KINDS)
@given(data=st.data())
def test_k_quants_are_bit_for_bit_the_librarys(dtype, data):
    """Any bytes at all: scales may be NaN, infinite or subnormal."""
    count = data.draw(st.integers(1, 5))
    raw = data.draw(hnp.arrays(np.uint8, (count * GEOMETRY[dtype][1],), elements=st.integers(0, 255)))
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw.reshape(1, -1), KINDS[dtype]).reshape(-1)
    found = dequantize(dtype, raw, (count * 256,))
    finite = ~np.isnan(expected)
    assert np.array_equal(np.isnan(found), ~finite)
    assert bits(found[finite]) == bits(expected[finite])


@pytest.mark.parametrize("dtype", KINDS)
def test_many_blocks_are_decoded_as_each_alone(dtype):
    block, size = GEOMETRY[dtype]
    raw = np.random.default_rng(0).integers(0, 60, 3000 * size, dtype=np.uint8)
    whole = dequantize(dtype, raw, (3000, block))
    for row in (0, 1, 1023, 1024, 2999):
        assert bits(whole[row]) == bits(dequantize(dtype, raw[row * size : (row + 1) * size], (block,)))


@pytest.mark.parametrize("dtype", KINDS)
def test_rows_that_are_padded_to_blocks_lose_their_padding(dtype):
    block, size = GEOMETRY[dtype]
    raw = np.random.default_rng(0).integers(0, 60, 3 * 2 * size, dtype=np.uint8)
    whole = dequantize(dtype, raw, (3, 2 * block))
    assert bits(dequantize(dtype, raw, (3, 300))) == bits(whole[:, :300])
    assert row_layout(dtype, (3, 300), raw.size) == (3, 300, 512)
    assert row_layout(dtype, (3, 300), 4 * size) == (1, 900, 1024)


def test_large_tensors_are_decoded_into_a_file_not_into_memory(monkeypatch):
    """A block of four bits grows eightfold, and memory is for four times the largest tensor."""
    raw = np.random.default_rng(0).integers(0, 60, 8 * 144, dtype=np.uint8)
    whole = dequantize("q4_k", raw, (8, 256))
    monkeypatch.setattr(quantized_blocks, "IN_MEMORY", 1024)
    mapped = dequantize("q4_k", raw, (8, 256))
    assert isinstance(mapped, np.memmap)
    assert bits(mapped) == bits(whole)


def test_blocks_that_could_mean_two_things_are_refused():
    with pytest.raises(FormatError, match="may be padded by row or at its end"):
        row_layout("q4_k", (2, 255), 288)
    with pytest.raises(FormatError, match="takes 144 bytes but 143"):
        row_layout("q4_k", (256,), 143)


def decoded_slowly(data, size):
    """APR_Q4 as its description says it, one number at a time."""
    numbers = []
    for start in range(0, len(data), 18):
        scale = struct.unpack("<e", data[start : start + 2])[0]
        if scale != scale or abs(scale) == float("inf") or abs(scale) < 2**-14:
            scale = 0.0
        for byte in data[start + 2 : start + 18]:
            numbers += [((byte & 15) - 8) * scale, ((byte >> 4) - 8) * scale]
    return numbers[:size]


@given(hnp.arrays(np.uint8, st.integers(1, 4).map(lambda n: 18 * n), elements=st.integers(0, 255)), st.integers(0, 31))
def test_apr_q4_is_decoded_as_described(raw, short):
    size = raw.size // 18 * 32 - short
    assert np.array_equal(dequantize("apr_q4", raw, (size,)), np.array(decoded_slowly(bytes(raw), size), np.float32))


def rounded_away(value):
    return int(abs(value) + 0.5) * (1 if value >= 0 else -1)


def test_apr_q4_is_encoded_as_described():
    values = np.array([7.0, -7.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.0] + [0.0] * 24 + [1e-9], np.float32)
    data, rounding = encode_blocks(values, "apr_q4", "w")
    assert data.size == quantized_bytes("apr_q4", values.size) == 36
    assert struct.unpack("<e", bytes(data[:2]))[0] == 1.0
    assert [int(byte) for byte in data[2:6]] == [15 | 1 << 4, 9 | 7 << 4, 10 | 11 << 4, 5 | 8 << 4]
    assert rounding.changed == 6  # the halves, and the number whose scale is too small for a half


def test_apr_q8_is_encoded_and_decoded_as_described():
    values = np.array([[127.0, -127.0, 0.5], [-0.5, 1.5, 3.0]], np.float32)
    data, rounding = encode_blocks(values, "apr_q8", "w")
    assert struct.unpack("<f", bytes(data[:4]))[0] == 1.0
    assert data[4:].view(np.int8).tolist() == [127, -127, 1, -1, 2, 3]
    assert (rounding.changed, rounding.largest) == (3, 0.5)
    assert np.array_equal(dequantize("apr_q8", data, (2, 3)), [[127, -127, 1], [-1, 2, 3]])


@pytest.mark.parametrize("dtype", ["apr_q4", "apr_q8"])
@given(array=hnp.arrays(np.float32, hnp.array_shapes(max_dims=2, max_side=70), elements=st.floats(-100, 100, width=32)))
def test_quantizing_moves_no_number_by_more_than_half_a_step(dtype, array):
    data, rounding = encode_blocks(array, dtype, "w")
    back = dequantize(dtype, data, array.shape)
    step = np.abs(array).max() / (7 if dtype == "apr_q4" else 127)
    assert np.abs(back - array).max() <= max(step * 0.51, 4.4e-4)
    assert rounding.largest == pytest.approx(np.abs(back.astype(float) - array.astype(float)).max(), abs=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_not_quantized(value):
    with pytest.raises(FormatError, match="'w': NaN and Inf cannot be quantized"):
        encode_blocks(np.array([[value]], np.float32), "apr_q8", "tensor 'w'")


def test_zeros_have_the_scale_one():
    assert encode_blocks(np.zeros((1, 32), np.float32), "apr_q4", "w")[0][:2].view(np.float16)[0] == 1
    assert encode_blocks(np.zeros((1, 32), np.float32), "apr_q8", "w")[0][:4].view(np.float32)[0] == 1
