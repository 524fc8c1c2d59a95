"""npz archives as checkpoints: a zip of npy files, stored without compression so that they can be mapped in place."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from ...core.atomic import replacing_path
from ...core.dtypes import ML_NAMES, NUMPY_NAMES, numpy_dtype
from ...core.mapped import MappedFile
from ...core.sites import shown
from ...errors import FormatError
from ...store.formats.npz import read_archive, write_member
from ..checkpoint import Array, Checkpoint, Entry
from ..writing import Job

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


DTYPES = tuple(NUMPY_NAMES)
WIDENED = dict.fromkeys(ML_NAMES, "f32")  # numpy has no name for these


def write(job: Job) -> list[str]:
    """Write the archive."""
    with replacing_path(job.path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        for tensor in job.tensors:
            if "\0" in tensor.name or not tensor.name:
                raise FormatError(f"tensor {shown(tensor.name)!r}: no archive can hold this name; rename it")
        for tensor, data in job.stored(job.tensors):
            array = data.view(numpy_dtype(tensor.entry.dtype)).reshape(tensor.entry.shape)
            write_member(archive, tensor.name, array)
        job.verify()
    return ["metadata was left out: npz holds arrays only"] if job.metadata else []
