"""Tensors that are handed over in memory, as a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..arrays import as_array
from ..checkpoints.checkpoint import Array, Checkpoint, Entry
from ..dtypes import dtype_name
from ..errors import FormatError

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
    return Checkpoint(Path("the given tensors"), IN_MEMORY, entries, lambda entry: arrays[entry.name].view())
