"""Token shards: numbers of tokens in files, mapped and never copied.

`.npy` says its own dtype. `.bin` is raw little-endian: unsigned numbers of 16 bits, or of 32 when the vocabulary
needs them or when every second half is zero, as small numbers of 32 bits are. A header as llm.c writes it is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, storage
from ..formats.npy import read_npy_header
from ..regular import check_regular, open_regular

SUFFIXES = (".npy", ".bin")
Tokens = NDArray[Any]  # one axis of unsigned or signed whole numbers

_CHUNK = 1 << 22
_HEADER = 1024  # bytes, of 256 numbers: magic, version, count
_HEADERS = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
_DTYPES = ("uint16", "uint32", "uint64", "int32", "int64", "uint8")
_READ = "check that it exists and that you may read it"


def open_shard(path: Path, vocab_size: int) -> Tokens:
    """The tokens of one file, all of them below `vocab_size`."""
    with storage(path, "read the shard", _READ):
        check_regular(path)
        tokens = _open_npy(path) if path.suffix == ".npy" else _open_bin(path, vocab_size)
    check_range(tokens, vocab_size, path)
    return tokens


def check_range(tokens: Tokens, vocab_size: int, place: object) -> None:
    """Refuse tokens that the model has no row for."""
    for start in range(0, len(tokens), _CHUNK):
        part = tokens[start : start + _CHUNK]
        wrong = np.flatnonzero((part < 0) | (part >= vocab_size))
        if wrong.size:
            at = int(wrong[0])
            raise FormatError(
                f"{place}: token {start + at} is {int(part[at])}, and the model's vocabulary ends at {vocab_size - 1} "
                "(OOB); give the shards, or the tokenizer, that belong to the model"
            )


def _open_npy(path: Path) -> Tokens:
    with open_regular(path) as file:
        header = read_npy_header(file, path.stat().st_size, str(path))
    if len(header.shape) != 1 or header.stored.name not in _DTYPES:
        what = f"{header.stored.name}{list(header.shape)}"
        raise FormatError(f"{path}: holds {what}, not one axis of {', '.join(_DTYPES)}; write the shard again")
    if not header.nbytes:
        return np.empty(0, header.stored)
    return np.memmap(path, header.stored, "r", header.offset, header.shape)


def _open_bin(path: Path, vocab_size: int) -> Tokens:
    size = path.stat().st_size
    if size == 0:
        return np.empty(0, np.uint16)
    dtype, skipped = _header(path, size)
    if dtype is None:
        dtype = "<u4" if vocab_size > 1 << 16 or _is_wide(path, size) else "<u2"
    width = np.dtype(dtype).itemsize
    if (size - skipped) % width:
        raise FormatError(f"{path}: {size - skipped} bytes are no whole number of {width}-byte tokens; write it again")
    return np.memmap(path, dtype, "r", offset=skipped)


def _header(path: Path, size: int) -> tuple[str | None, int]:
    """The dtype that a header says, and its length; nothing for a file without one."""
    if size < _HEADER:
        return None, 0
    magic, version, count = np.fromfile(path, "<i4", 3).tolist()
    dtype = _HEADERS.get((magic, version))
    if dtype is None:
        return None, 0
    held = (size - _HEADER) // np.dtype(dtype).itemsize
    if held != count:
        raise FormatError(f"{path}: its header claims {count} tokens and {held} follow; write the shard again")
    return dtype, _HEADER


def _is_wide(path: Path, size: int) -> bool:
    """Whether every second number of 16 bits is zero, which makes the numbers ones of 32."""
    if size % 4:
        return False
    halves = np.memmap(path, "<u2", "r")
    return not any(halves[start + 1 : start + _CHUNK : 2].any() for start in range(0, len(halves), _CHUNK))
