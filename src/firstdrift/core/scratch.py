"""Room for derived tensors: small ones in memory, large ones in an unlinked file, so that memory stays bounded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..errors import storage

Array = NDArray[np.generic]
IN_MEMORY = 32 << 20
CHUNK = 4 << 20  # elements worked on at a time


def scratch(shape: tuple[int, ...], dtype: np.dtype[np.generic], in_memory: int | None = None) -> Array:
    """An array to fill; beyond a few MiB (or `in_memory` bytes) its pages belong to a file that vanishes with it."""
    if prod(shape) * dtype.itemsize <= (IN_MEMORY if in_memory is None else in_memory):
        return np.empty(shape, dtype)
    import tempfile  # here, because few tensors are so large

    room = storage(tempfile.gettempdir(), "make room for a large tensor", "free some space there, or set TMPDIR")
    with room, tempfile.TemporaryFile(prefix="firstdrift-") as file:  # the mapping keeps what it needs of it
        if hasattr(os, "posix_fallocate"):  # now, or a full disk would end the process at the first write
            os.posix_fallocate(file.fileno(), 0, prod(shape) * dtype.itemsize)
        return np.memmap(file, dtype, "w+", shape=shape)


def mapped_rows(work: Callable[..., Array], *arrays: Array) -> Array:
    """`work` applied to slices along the first axis, so that no temporary is the size of a tensor."""
    first = arrays[0]
    if first.nbytes <= IN_MEMORY or first.ndim == 0:
        return work(*arrays)
    sample = work(*(array[:1] for array in arrays))
    result = scratch(first.shape, sample.dtype)
    for into, *rows in zip(row_slices(result), *map(row_slices, arrays), strict=True):
        into[...] = work(*rows)
    return result


def row_slices(array: Array) -> Iterator[Array]:
    """Slices along the first axis that are small enough to work on; their number is a matter of the shape alone."""
    if array.size <= CHUNK or array.ndim == 0:
        yield array
        return
    rows = max(1, CHUNK // (array.size // len(array)))
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def concatenated(arrays: list[Array], axis: int) -> Array:
    """The arrays joined along an axis."""
    if sum(array.nbytes for array in arrays) <= IN_MEMORY:
        return np.concatenate(arrays, axis)
    shape = list(arrays[0].shape)
    shape[axis] = sum(array.shape[axis] for array in arrays)
    result = scratch(tuple(shape), arrays[0].dtype)
    np.concatenate(arrays, axis, out=result)
    return result
