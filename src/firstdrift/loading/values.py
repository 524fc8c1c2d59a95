"""Values that no trained weight has, and the checksum, in one reading of an array."""

from __future__ import annotations

import numpy as np

from .._kernels import checksums
from .._kernels.checksums import crc32
from ..checkpoints.checkpoint import Array
from .identifiers import MEAN

LARGEST_MEAN = 100.0
CHUNK = 1 << 18  # elements looked at together


def scan(array: Array) -> tuple[int, str | None]:
    """The CRC-32 of a contiguous array's bytes, and what is wrong with its values: NaN, infinity, a mean beyond 100."""
    if not _is_ieee(array.dtype):
        return crc32(array), wrong_values(array)
    crc, largest = checksums.scan(array)
    # No mean is larger than the largest magnitude, which is nearly always small enough to say all.
    limits = np.array([np.inf, LARGEST_MEAN], array.dtype).view(f"u{array.dtype.itemsize}")
    suspicious = largest >= int(limits[0]) or largest > int(limits[1])
    return crc, wrong_values(array) if suspicious else None


def wrong_values(array: Array) -> str | None:
    """Why these cannot be weights; None when they can. Integers and flags may have any value."""
    if array.dtype.kind in "iub" or not array.size:
        return None
    nans = infinite = 0
    total = 0j
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK]
            part = part.astype(np.complex128 if part.dtype.kind == "c" else np.float64)
            nans += int(np.count_nonzero(np.isnan(part)))
            infinite += int(np.count_nonzero(np.isinf(part)))
            total += complex(part.sum())
    if nans or infinite:
        found = " and ".join(f"{n} {what}" for n, what in ((nans, "NaN"), (infinite, "Inf")) if n)
        return f"{found} among {flat.size} values"
    mean = total / flat.size
    if abs(mean) > LARGEST_MEAN:
        shown = mean if mean.imag else mean.real
        return f"its mean is {shown:.6g}, beyond ±{LARGEST_MEAN:g} ({MEAN})"
    return None


def _is_ieee(dtype: np.dtype[np.generic]) -> bool:
    return dtype.name in ("float16", "float32", "float64", "bfloat16")
