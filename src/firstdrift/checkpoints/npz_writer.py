"""Write npz archives that numpy can load: stored, not compressed, so that they can be mapped again."""

from __future__ import annotations

import zipfile

import numpy as np
from numpy.lib import format as numpy_format

from ..atomic import replacing_path
from ..dtypes import ML_NAMES, NUMPY_NAMES, numpy_dtype
from ..errors import FormatError
from ..sites import shown
from .jobs import Change, Job, change

DTYPES = tuple(NUMPY_NAMES)
WIDENED = dict.fromkeys(ML_NAMES, "f32")  # numpy has no name for these


def write(job: Job) -> tuple[list[Change], list[str]]:
    """Write the archive."""
    changes: list[Change] = []
    with replacing_path(job.path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        for tensor in job.tensors:
            if "\0" in tensor.name or not tensor.name:
                raise FormatError(f"tensor {shown(tensor.name)!r}: no archive can hold this name; rename it")
            array, rounding = tensor.load()
            array = np.asarray(array, numpy_dtype(tensor.entry.dtype), order="C")
            with archive.open(zipfile.ZipInfo(f"{tensor.name}.npy"), "w", force_zip64=True) as member:
                numpy_format.write_array(member, array, version=(1, 0), allow_pickle=False)
            job.advance(array.nbytes)
            changes += change(tensor, rounding)
        job.verify()
    return changes, ["metadata was left out: npz holds arrays only"] if job.metadata else []
