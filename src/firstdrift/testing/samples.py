"""Traces that need no disk, and arrays made of the bit patterns that conversions lose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from ..core.dtypes import ITEMSIZE, dtype_name, numpy_dtype
from ..core.records import Record
from ..core.sites import Site
from ..core.strict_json import Json
from ..core.traces import Array, Trace
from ..errors import FormatError

# Exponent bits of the IEEE-like formats whose infinities and NaNs can be spelled from it.
_EXPONENT_BITS = {"f64": 11, "f32": 8, "f16": 5, "bf16": 8}
_COMPLEX = {"c64": "f32", "c128": "f64"}


def memory_trace(
    tensors: Mapping[Site, Array],
    *,
    details: Mapping[Site, Mapping[str, Json]] | None = None,
    without_values: Iterable[Record] = (),
    header: Mapping[str, Json] | None = None,
) -> Trace:
    """A trace that lies in memory: its tensors, optional keys of their lines, and lines that have no values."""
    lines = []
    for site, array in tensors.items():
        dtype = dtype_name(array.dtype)
        if dtype is None:
            raise FormatError(f"{site}: dtype {array.dtype} is not one that a trace can hold; use another")
        lines.append(Record(site, dtype, array.shape, (0, 0, array.nbytes), dict((details or {}).get(site, {}))))
    special = {site: (lambda array=array: array) for site, array in tensors.items()}
    return Trace(Path("memory"), "memory", [*lines, *without_values], _no_file, header=header, special=special)


def _no_file(number: int) -> Path:
    raise AssertionError(f"a trace in memory has no file {number}")


def bits(array: Array) -> bytes:
    """The array's values as little-endian bytes in C order; equal bytes are equal bits, NaN payloads included."""
    if array.dtype.byteorder == ">":
        array = array.byteswap().view(array.dtype.newbyteorder("<"))
    return array.tobytes()


def awkward_array(dtype: str) -> Array:
    """Every kind of value a conversion could lose: signed zeros, subnormals, infinities, quiet and signalling NaNs."""
    if dtype in _COMPLEX:
        parts = awkward_array(_COMPLEX[dtype])
        return np.concatenate([parts, parts[::-1]]).view(numpy_dtype(dtype))
    width = 8 * ITEMSIZE[dtype]
    if dtype in _EXPONENT_BITS:
        patterns = _float_patterns(width, _EXPONENT_BITS[dtype])
    elif dtype == "bool":
        patterns = [0, 1]
    elif width == 8:
        patterns = list(range(256))  # float8 and bytes: simply all of them
    else:
        patterns = [0, 1, 2 ** (width - 1) - 1, 2 ** (width - 1), 2**width - 1]
    return np.array(patterns, f"<u{width // 8}").view(numpy_dtype(dtype))


def _float_patterns(width: int, exponent_bits: int) -> list[int]:
    mantissa = width - 1 - exponent_bits
    sign, infinity, quiet = 1 << (width - 1), ((1 << exponent_bits) - 1) << mantissa, 1 << (mantissa - 1)
    one = ((1 << (exponent_bits - 1)) - 1) << mantissa
    positive = [0, 1, (1 << mantissa) - 1, 1 << mantissa, one, one + 1, infinity - 1]
    nans = [infinity | quiet, infinity | quiet | 5, infinity | 1, infinity | (quiet - 1), infinity | (2 * quiet - 1)]
    return [pattern | top for pattern in [*positive, infinity, *nans] for top in (0, sign)]
