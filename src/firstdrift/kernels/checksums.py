"""CRC-32 and largest magnitudes of arrays: native where that was compiled, else by zlib and numpy; the same numbers."""

from __future__ import annotations

import zlib

import numpy as np

from .pieces import Array, compiled

native = compiled("checksum")

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def crc32(array: Array, start: int = 0) -> int:
    """The CRC-32, as of zlib, of a contiguous array's bytes; `start` is that of what comes before."""
    data = _flat(array).view(np.uint8)
    if native is None or native.folding() == 0:  # zlib has tables too, and good ones
        return zlib.crc32(data, start)
    found: int = native.crc32(data, start)
    return found


def scan(array: Array) -> tuple[int, int]:
    """The CRC-32 of a contiguous array, and its largest element as an unsigned number without its highest bit.

    Of IEEE floats that is the largest magnitude: infinity is above every number, and NaN above infinity.
    """
    width = array.dtype.itemsize
    data = _flat(array).view(_UNSIGNED[width])
    if native is None or native.folding() == 0:
        return crc32(array), int(np.max(data << data.dtype.type(1), initial=0)) >> 1
    found: tuple[int, int] = native.scan(data.view(np.uint8), width)
    return found


def _flat(array: Array) -> Array:
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous")
    return array.reshape(-1)
