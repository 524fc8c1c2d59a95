"""Write PyTorch files: a dictionary of tensors, as `model.state_dict()` saves it."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np

from ..atomic import replacing
from ..dtypes import ITEMSIZE, ML_NAMES, numpy_dtype
from ..errors import FormatError
from ..scratch import scratch
from .jobs import Change, Job, change

DTYPES = tuple(ITEMSIZE)
WIDENED: dict[str, str] = {}


def write(job: Job) -> tuple[list[Change], list[str]]:
    """Write the file. PyTorch wants every tensor at once, so what was converted waits in a file that vanishes."""
    try:
        import torch
    except ImportError:
        raise FormatError(f"{job.path}: PyTorch files are written by torch, which is not installed") from None
    changes: list[Change] = []
    tensors: dict[str, Any] = {}
    for tensor in job.tensors:
        array, rounding = tensor.load()
        held = scratch(tensor.entry.shape, numpy_dtype(tensor.entry.dtype), in_memory=0 if array.nbytes else None)
        held[...] = array
        tensors[tensor.name] = _tensor(torch, held, tensor.entry.dtype)
        job.advance(held.nbytes)
        changes += change(tensor, rounding)
    with replacing(job.path) as file:
        _save(torch, tensors, file)
        job.verify()
    return changes, ["metadata was left out: a state_dict holds tensors only"] if job.metadata else []


def _save(torch: Any, tensors: dict[str, Any], file: BinaryIO) -> None:
    """Into an open file: of a full disk torch tells as of its own defect, and keeps the system's word behind it."""
    try:
        torch.save(tensors, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _tensor(torch: Any, array: np.ndarray[Any, Any], dtype: str) -> Any:
    """A tensor on the array's memory; what numpy has no type for goes by its bits."""
    array = np.asarray(array)
    if dtype not in ML_NAMES:
        return torch.from_numpy(array)
    bits = np.int16 if ITEMSIZE[dtype] == 2 else np.uint8
    return torch.from_numpy(array.view(bits)).view(getattr(torch, ML_NAMES[dtype]))
