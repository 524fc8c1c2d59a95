"""Quantized blocks: how many elements and bytes a block has, and the numbers that it means.

Q4_K, Q6_K and the two APR types are decoded here, a few blocks at a time so that temporaries stay in the cache; the
other types of GGUF are the `gguf` library's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, cast

import numpy as np

from ..errors import FormatError
from ..mapped import Bytes
from ..scratch import scratch
from .checkpoint import Array

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
