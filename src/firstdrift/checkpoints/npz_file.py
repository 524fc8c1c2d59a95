"""npz archives as checkpoints: a zip of npy files, mapped in place where they are stored plainly."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..dtypes import numpy_dtype
from ..errors import FormatError
from ..formats.npz import read_archive
from ..mapped import MappedFile
from .checkpoint import Array, Checkpoint, Entry

FORMAT = "npz"


def open_npz(path: Path) -> Checkpoint:
    """Open an archive of arrays; compressed members are read when they are asked for."""
    file = MappedFile(path)
    stored, special, index = read_archive(path)
    if index is not None:
        raise FormatError(f"{path}: is a recorded trace, not a checkpoint; look at it with `firstdrift show`")
    entries = {name: Entry(name, held.dtype, held.shape, held.at[2]) for name, held in stored.items()}

    def load(entry: Entry) -> Array:
        dtype = numpy_dtype(entry.dtype)
        if entry.name in special:
            return np.asarray(special[entry.name](), dtype)  # big-endian and compressed members
        _, offset, nbytes = stored[entry.name].at
        return file.view(offset, nbytes).view(dtype).reshape(entry.shape)

    return Checkpoint(path, FORMAT, entries, load, files=[file])
