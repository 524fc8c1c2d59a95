"""PyTorch files: only what `torch.load(weights_only=True)` accepts, mapped, and never any other pickle; written as
`model.state_dict()` is saved.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...core.arrays import as_array
from ...core.atomic import replacing
from ...core.dtypes import ITEMSIZE, ML_NAMES, dtype_name, numpy_dtype
from ...core.mapped import MappedFile
from ...core.scratch import scratch
from ...core.sites import shown
from ...core.strict_json import Json
from ...errors import FirstdriftError, FormatError
from ..checkpoint import Array, Checkpoint, Entry
from ..writing import Job

FORMAT = "pt"
NESTED = ("state_dict", "model_state_dict", "model", "module")  # where training scripts put the weights


def holds_pickle(path: Path) -> bool:
    """Whether a zip archive is one that PyTorch wrote."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("data.pkl") for name in archive.namelist())
    except Exception:  # whoever opens it says what is wrong
        return False


def open_torch(path: Path) -> Checkpoint:
    """Open a PyTorch file; names of one and the same tensor are aliases of the first of them."""
    file = MappedFile(path)
    tensors, notes = _state_dict(_load(path), path)
    stored: dict[Any, str] = {}
    entries: dict[str, Entry] = {}
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        file.watch(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        same = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride())
        if tensor.numel() and same in stored:
            aliases[name] = stored[same]
            continue
        stored[same] = name
        array = _array(tensor, f"{path}, tensor {shown(name)!r}")
        entries[name] = Entry(name, dtype_name(array.dtype) or "", array.shape, array.nbytes)
    file.check_unchanged()

    def load(entry: Entry) -> Array:
        return _array(tensors[entry.name], entry.name)

    return Checkpoint(path, FORMAT, entries, load, files=[file], aliases=aliases, notes=notes)


def _load(path: Path) -> Json:
    """The contents, through PyTorch's own restricted reader."""
    try:
        import torch
    except ImportError:
        raise FormatError(f"{path}: is a PyTorch file, and torch is not installed; pip install torch") from None
    try:
        mapped = zipfile.is_zipfile(path)  # the format before 1.6 cannot be mapped
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped or None)
    except Exception as error:  # PyTorch reports damage, refusals and lies by a dozen kinds
        why = str(error).strip().split("\n")[0][:200]
        said = f"torch.load(weights_only=True) refuses it ({type(error).__name__}: {why})"
        raise FormatError(f"{path}: {said}; save `model.state_dict()` or a safetensors file") from None


def _state_dict(said: Json, path: Path) -> tuple[dict[str, Any], list[str]]:
    """The tensors by name: of the file itself, or of the one place in it where weights are usually kept."""
    import torch

    where, found = "", said
    if isinstance(said, dict) and not any(isinstance(value, torch.Tensor) for value in said.values()):
        places = [key for key in NESTED if isinstance(said.get(key), dict) and said[key]]
        if len(places) > 1:
            raise FormatError(f"{path}: has weights in {' and '.join(places)}; save the one you mean by itself")
        if places:
            where, found = places[0], said[places[0]]
    if not isinstance(found, dict):
        raise FormatError(f"{path}: holds a {type(found).__name__}, not names with tensors; save a state_dict")
    tensors = {key: value for key, value in found.items() if isinstance(value, torch.Tensor)}
    if unnamed := [key for key in tensors if not isinstance(key, str)]:
        raise FormatError(f"{path}: has a tensor under {unnamed[0]!r}, which is no name; save a state_dict")
    others = [str(key) for key in found if key not in tensors]
    if others and not tensors:
        raise FormatError(f"{path}: holds {', '.join(others[:5])} but no tensors; save a state_dict")
    notes = [f"the weights are those under {where!r}"] if where else []
    if others:
        notes.append(f"{len(others)} values that are no tensors were left out: {', '.join(map(shown, others[:5]))}")
    return tensors, notes


def _array(tensor: Any, place: str) -> Array:
    """A tensor's numbers by their bits; what is not dense and on the CPU has none."""
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized or str(tensor.device) != "cpu":
        raise FormatError(f"{place}: is {tensor.layout} on {tensor.device}, not a dense tensor; save it dense")
    try:
        array = as_array(tensor, place)
    except FirstdriftError as error:
        raise FormatError(f"{error}") from None
    if dtype_name(array.dtype) is None:
        raise FormatError(f"{place}: has dtype {tensor.dtype}, which is not supported; convert it")
    return array


DTYPES = tuple(ITEMSIZE)
WIDENED: dict[str, str] = {}


def write(job: Job) -> list[str]:
    """Write the file. PyTorch wants every tensor at once, so what was converted waits in a file that vanishes."""
    try:
        import torch
    except ImportError:
        raise FormatError(f"{job.path}: PyTorch files are written by torch, which is not installed") from None
    tensors: dict[str, Any] = {}
    for tensor, data in job.stored(job.tensors):
        dtype, shape = numpy_dtype(tensor.entry.dtype), tensor.entry.shape
        held = scratch(shape, dtype, in_memory=0 if data.nbytes else None)
        held[...] = data.view(dtype).reshape(shape)
        tensors[tensor.name] = _tensor(torch, held, tensor.entry.dtype)
    with replacing(job.path) as file:
        _save(torch, tensors, file)
        job.verify()
    return ["metadata was left out: a state_dict holds tensors only"] if job.metadata else []


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
