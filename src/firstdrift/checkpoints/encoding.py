"""Quantize into the two types that APR has of its own. The types of GGUF are only decoded."""

from __future__ import annotations

import numpy as np

from ..errors import FormatError
from ..mapped import Bytes
from .blocks import AT_ONCE, GEOMETRY, Floats, dequantize, quantized_bytes
from .checkpoint import Array
from .rounding import Rounding, difference

LARGEST_HALF = 65504.0
ENCODED = ("apr_q4", "apr_q8")


def encode_blocks(array: Array, dtype: str, place: str) -> tuple[Bytes, Rounding]:
    """The bytes of an array in a quantized type, and how far its numbers moved."""
    flat = array.reshape(-1)
    largest = _largest(flat, dtype, place)
    return _apr_q4(flat, largest, place) if dtype == "apr_q4" else _apr_q8(flat, largest, place)


def _apr_q4(flat: Array, largest: float, place: str) -> tuple[Bytes, Rounding]:
    """Blocks of 32 with a half-precision scale, two numbers a byte, the even one below."""
    if largest / 7 > LARGEST_HALF:
        raise FormatError(f"{place}: the scale of {largest:g} is beyond half precision; keep its dtype")
    block, nbytes = GEOMETRY["apr_q4"]
    data = np.empty(quantized_bytes("apr_q4", flat.size), np.uint8)
    total = Rounding()
    for start in range(0, flat.size, AT_ONCE):
        part = flat[start : start + AT_ONCE]
        blocks = np.zeros((-(-part.size // block), block), np.float32)
        blocks.reshape(-1)[: part.size] = part
        scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(7)
        scale[scale == 0] = 1
        numbers = (np.clip(_half_away(blocks / scale), -8, 7) + 8).astype(np.uint8)
        out = data[start // block * nbytes :][: len(blocks) * nbytes].reshape(-1, nbytes)
        out[:, :2] = scale.astype(np.float16).view(np.uint8)
        out[:, 2:] = numbers[:, 0::2] | (numbers[:, 1::2] << 4)
        total += difference(part, dequantize("apr_q4", out.reshape(-1), (part.size,)), "apr_q4", place)
    return data, total


def _apr_q8(flat: Array, largest: float, place: str) -> tuple[Bytes, Rounding]:
    """One scale for the whole tensor, a byte a number."""
    scale = np.float32(largest) / np.float32(127) or np.float32(1)
    data = np.empty(quantized_bytes("apr_q8", flat.size), np.uint8)
    data[:4] = np.array([scale], "<f4").view(np.uint8)
    codes = data[4:].view(np.int8)
    total = Rounding()
    for start in range(0, flat.size, AT_ONCE):
        part = flat[start : start + AT_ONCE]
        numbers = np.clip(_half_away(part.astype(np.float32) / scale), -127, 127)
        codes[start : start + AT_ONCE] = numbers
        total += difference(part, numbers * scale, "apr_q8", place)
    return data, total


def _largest(flat: Array, dtype: str, place: str) -> float:
    """The largest magnitude, a part at a time; what is not finite has no place among blocks."""
    largest = 0.0
    for start in range(0, flat.size, AT_ONCE):
        part = float(np.abs(flat[start : start + AT_ONCE].astype(np.float32)).max())
        if not np.isfinite(part):
            raise FormatError(f"{place}: NaN and Inf cannot be quantized to {dtype}; repair the tensor first")
        largest = max(largest, part)
    return largest


def _half_away(floats: Floats) -> Floats:
    """Rounded to whole numbers, halves away from zero: numpy's own rounding is to even."""
    whole = np.trunc(floats)
    return whole + np.copysign(np.abs(floats - whole) >= np.float32(0.5), floats)
