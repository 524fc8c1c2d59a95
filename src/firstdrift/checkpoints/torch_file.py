"""PyTorch files: only what `torch.load(weights_only=True)` accepts, mapped, and never any other pickle."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from ..arrays import as_array
from ..dtypes import dtype_name
from ..errors import FormatError, FirstdriftError, StorageError
from ..sites import shown
from ..strict_json import Json
from .checkpoint import Array, Checkpoint, Entry, joined
from .json_file import read_json_object
from .mapped import MappedFile
from .safetensors_file import MAX_INDEX_BYTES, check_plain_name

FORMAT = "pt"
NESTED = ("state_dict", "model_state_dict", "model", "module")  # where training scripts put the weights


def holds_pickle(path: Path) -> bool:
    """Whether a zip archive is one that PyTorch wrote."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") or name == "data.pkl" for name in archive.namelist())
    except Exception:  # whoever opens it says what is wrong
        return False


def open_torch(path: Path) -> Checkpoint:
    """Open a PyTorch file; names that share one storage completely are aliases of the first."""
    file = MappedFile(path)
    tensors, notes = _tensors(_load(path), path)
    stored: dict[Any, str] = {}
    entries: dict[str, Entry] = {}
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        same = _identity(tensor)
        if same in stored and tensor.numel():
            aliases[name] = stored[same]
            continue
        stored[same] = name
        array = _array(tensor, f"{path}, tensor {shown(name)!r}")
        entries[name] = Entry(name, dtype_name(array.dtype) or "", array.shape, array.nbytes)

    def load(entry: Entry) -> Array:
        return _array(tensors[entry.name], entry.name).view()

    return Checkpoint(path, FORMAT, entries, load, files=[file], aliases=aliases, notes=notes)
