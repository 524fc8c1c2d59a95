"""Tensors that are handed over in memory, as a checkpoint."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..arrays import as_array
from ..checkpoints.checkpoint import Array, Checkpoint, Entry
from ..dtypes import dtype_name
from ..errors import FormatError
from .destinations import Destination

IN_MEMORY = "memory"


def in_memory(tensors: Mapping[str, Any]) -> Checkpoint:
    """A table of arrays or torch tensors as a checkpoint."""
    arrays: dict[str, Array] = {}
    entries = {}
    for name, value in tensors.items():
        array = as_array(value, f"tensor {name!r}")
        dtype = dtype_name(array.dtype)
        if dtype is None:
            raise FormatError(f"tensor {name!r}: dtype {array.dtype} is none that a checkpoint has; convert it")
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        arrays[name] = array
        entries[name] = Entry(name, dtype, array.shape, array.nbytes)
    return _checkpoint(entries, arrays)


def apart(checkpoint: Checkpoint, places: Sequence[Destination]) -> Checkpoint:
    """The same tensors, in memory of their own where they are the model's: writing one must not change another."""
    spans = sorted(
        (one.tensor.data_ptr(), one.tensor.data_ptr() + one.tensor.untyped_storage().nbytes())
        for one in places
        if one.tensor.device.type == "cpu" and one.size
    )
    starts = [start for start, _ in spans]
    arrays = {}
    for name in checkpoint.entries:
        array = checkpoint.array(name)
        low = array.ctypes.data
        before = spans[: bisect_left(starts, low + array.nbytes)]
        own = array.flags.c_contiguous and not any(low < end for _, end in before)
        arrays[name] = array if own else array.copy()
    return _checkpoint(checkpoint.entries, arrays)


def _checkpoint(entries: Mapping[str, Entry], arrays: Mapping[str, Array]) -> Checkpoint:
    return Checkpoint(Path("the given tensors"), IN_MEMORY, entries, lambda entry: arrays[entry.name].view())
