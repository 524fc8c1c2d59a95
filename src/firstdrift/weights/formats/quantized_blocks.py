"""Quantized blocks: how many elements and bytes a block has, the numbers that it means, and the two types that are
written.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, cast

import numpy as np

from ...core.mapped import Bytes
from ...core.scratch import scratch
from ...errors import FormatError
from ..checkpoint import Array
from ..dtype_rounding import Rounding, difference

Floats = np.ndarray[Any, np.dtype[np.float32]]
GEOMETRY = {"q4_k": (256, 144), "q6_k": (256, 210), "apr_q4": (32, 18)}  # elements and bytes of a block
ROW_PADDED = ("q4_k", "q6_k")  # of which some writers pad every row of a matrix to full blocks
IN_MEMORY = 128 << 20  # bytes
AT_ONCE = 1 << 18  # elements decoded at a time


def dequantize(dtype: str, data: Bytes, shape: tuple[int, ...]) -> Array:
    """The float32 numbers of stored bytes; rows, or the whole tensor, may be padded to full blocks."""
    result = room_for(shape)
    if dtype == "apr_q8":
        scale = data[:4].view(np.float32)[0] if data.size else np.float32(0)
        with np.errstate(invalid="ignore", over="ignore"):
            np.multiply(data[4:].view(np.int8).reshape(shape), scale, out=result, dtype=np.float32)
        return result
    rows, columns, padded = row_layout(dtype, shape, data.size)
    block, nbytes = GEOMETRY[dtype]
    if padded == columns:
        _decode(DECODERS[dtype], data.reshape(-1, nbytes), result.reshape(-1, block))
        return result
    flat = result.reshape(rows, columns)
    stored = data.reshape(rows, -1)
    for row in range(rows):
        whole = np.empty((padded // block, block), np.float32)
        _decode(DECODERS[dtype], stored[row].reshape(-1, nbytes), whole)
        flat[row] = whole.reshape(-1)[:columns]
    return result


def room_for(shape: tuple[int, ...]) -> Floats:
    """Space for decoded numbers, up to eight times the size of their blocks: large ones are kept in a file."""
    return cast(Floats, scratch(shape, np.dtype(np.float32), IN_MEMORY))


def row_layout(dtype: str, shape: tuple[int, ...], nbytes: int) -> tuple[int, int, int]:
    """Rows, columns, and columns with padding: one long row where only the end is padded.

    The number of bytes tells which; where it fits both and they differ, nobody can tell.
    """
    block, size = GEOMETRY[dtype]
    total = prod(shape)
    blocks = -(-total // block)
    if dtype in ROW_PADDED and len(shape) == 2 and shape[1] % block and shape[0] > 1:
        rows, columns = shape
        by_row = -(-columns // block)
        if nbytes == rows * by_row * size:
            if rows * by_row == blocks:
                raise FormatError(
                    f"{dtype}{list(shape)} in {nbytes} bytes may be padded by row or at its end; export it unquantized"
                )
            return rows, columns, by_row * block
    if nbytes != blocks * size:
        raise FormatError(f"{dtype}{list(shape)} takes {blocks * size} bytes but {nbytes} are there; export it again")
    return 1, total, blocks * block


def quantized_bytes(dtype: str, size: int) -> int:
    """Bytes that a tensor takes when it is padded at its end only."""
    if dtype == "apr_q8":
        return 4 + size
    block, nbytes = GEOMETRY[dtype]
    return -(-size // block) * nbytes


def _decode(decoder: Callable[[Bytes, Floats], None], blocks: Bytes, out: Floats) -> None:
    step = max(1, AT_ONCE // out.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):  # scales may be anything in a damaged file
        for start in range(0, len(blocks), step):
            decoder(blocks[start : start + step], out[start : start + step])


def _half(data: Bytes) -> Floats:
    """Two bytes as a half, in float32."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _q4_k(blocks: Bytes, out: Floats) -> None:
    """Eight groups of 32: four-bit numbers times a scale, less a minimum; both have six bits and a common factor."""
    packed = blocks[:, 4:16]
    low, high, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.empty((len(blocks), 8), np.uint8)
    mins = np.empty((len(blocks), 8), np.uint8)
    scales[:, :4], scales[:, 4:] = low & 63, (rest & 15) | ((low >> 2) & 48)
    mins[:, :4], mins[:, 4:] = high & 63, (rest >> 4) | ((high >> 2) & 48)
    scale = (_half(blocks[:, 0:2]) * scales.astype(np.float32)).reshape(-1, 4, 2, 1)
    offset = (_half(blocks[:, 2:4]) * mins.astype(np.float32)).reshape(-1, 4, 2, 1)
    nibbles = blocks[:, 16:].reshape(-1, 4, 32)
    groups = out.reshape(-1, 4, 2, 32)
    groups[:, :, 0] = nibbles & 15
    groups[:, :, 1] = nibbles >> 4
    groups *= scale
    groups -= offset


def _q6_k(blocks: Bytes, out: Floats) -> None:
    """Sixteen groups of 16: six-bit numbers around 32, four bits here and two there, times a signed scale."""
    scale = _half(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    low = blocks[:, 0:128].reshape(-1, 2, 2, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    codes = np.empty((len(blocks), 2, 4, 32), np.uint8)
    np.bitwise_and(low, 15, out=codes[:, :, :2])
    np.right_shift(low, 4, out=codes[:, :, 2:])
    codes[:, :, 0] |= (high & 3) << 4
    codes[:, :, 1] |= (high & 12) << 2
    codes[:, :, 2] |= high & 48
    codes[:, :, 3] |= (high & 192) >> 2
    codes -= np.uint8(32)  # wraps, and is read as signed
    out[...] = codes.view(np.int8).reshape(out.shape)
    groups = out.reshape(-1, 16, 16)
    groups *= scale[:, :, None]


def _apr_q4(blocks: Bytes, out: Floats) -> None:
    """32 four-bit numbers around 8, even elements in low nibbles; a scale that is not a normal number means zero."""
    scale = _half(blocks[:, 0:2])
    bits = np.ascontiguousarray(blocks[:, 0:2]).view(np.uint16)
    exponent = bits & 0x7C00
    scale[(exponent == 0) | (exponent == 0x7C00)] = 0
    pairs = out.reshape(-1, 16, 2)
    pairs[:, :, 0] = blocks[:, 2:] & 15
    pairs[:, :, 1] = blocks[:, 2:] >> 4
    out -= np.float32(8)
    out *= scale


DECODERS: dict[str, Callable[[Bytes, Floats], None]] = {"q4_k": _q4_k, "q6_k": _q6_k, "apr_q4": _apr_q4}


LARGEST_HALF = 65504.0
ENCODED = ("apr_q4", "apr_q8")


def encode_blocks(array: Array, dtype: str, place: str) -> tuple[Bytes, Rounding]:
    """The bytes of an array in a quantized type, and how far its numbers moved."""
    flat = array.reshape(-1)
    largest = _largest(flat, dtype, place)
    return _to_apr_q4(flat, largest, place) if dtype == "apr_q4" else _to_apr_q8(flat, largest, place)


def _to_apr_q4(flat: Array, largest: float, place: str) -> tuple[Bytes, Rounding]:
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


def _to_apr_q8(flat: Array, largest: float, place: str) -> tuple[Bytes, Rounding]:
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
