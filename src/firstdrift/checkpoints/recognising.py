"""Whether a path holds weights: told by its first bytes, as when it is opened. A file that carries a trace does not."""

from __future__ import annotations

from pathlib import Path

from ..aprt import MAGIC as STAGE
from ..formats.border import without_raising
from ..formats.native import recognise as is_trace
from ..formats.safetensors_file import carries_trace
from ..regular import read_regular
from .hf_directory import weights_file
from .opening import ZIP, read_index


@without_raising
def is_checkpoint(path: Path) -> bool:
    """Whether `open_checkpoint` is for it. An npz is a trace here: nothing tells one from the other."""
    if path.is_dir():
        return not is_trace(path) and is_checkpoint(weights_file(path)[0])
    start = read_regular(path, 16)
    if start[:4] == ZIP:
        from .torch_file import holds_pickle

        return holds_pickle(path)
    if start[:1] == b"{":
        return "weight_map" in read_index(path)
    if start[8:9] == b"{" or path.suffix == ".safetensors":
        return not carries_trace(path)
    return start[:4] == b"GGUF" or (start[:3] == b"APR" and start[:4] != STAGE)
