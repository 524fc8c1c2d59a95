"""The one door to every checkpoint: what a path holds is told by its first bytes, not by its name."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from ..aprt import MAGIC as STAGE
from ..core.regular import read_regular
from ..core.strict_json import Json
from ..errors import FormatError, storage
from ..store.formats.border import without_raising
from ..store.formats.native_format import recognise as is_trace
from ..store.formats.safetensors_trace import carries_trace
from .checkpoint import Checkpoint
from .formats.hf_directory import weights_file
from .formats.safetensors_weights import MAX_INDEX_BYTES, is_index, open_safetensors, open_sharded, weight_map

KNOWN = "safetensors (or its index), APR v2, GGUF, npz, PyTorch, or a Hugging Face directory"
ZIP = b"PK\x03\x04"
EMPTY_ZIP = b"PK\x05\x06"


def open_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Open weights in any known format; arrays are loaded when they are asked for."""
    path = Path(path)
    with storage(path, "read the checkpoint", "check that it exists and that you may read it"):
        path.stat()
        if path.is_dir():
            return _open_directory(path)
        start = read_regular(path, 16)
    return open_file(path, start)


def open_file(path: Path, start: bytes) -> Checkpoint:
    """Open one file by what its first bytes say."""
    if start[:4] == STAGE:
        raise FormatError(f"{path}: is an APRT stage file, and no checkpoint; firstdrift diff --values compares two")
    if start[:3] == b"APR":
        from .formats.apr import open_apr

        return open_apr(path)
    if start[:4] == b"GGUF":
        from .formats.gguf_file import open_gguf

        return open_gguf(path)
    if start[:4] in (ZIP, EMPTY_ZIP):
        return _open_zip(path)
    if start[:1] == b"{":
        return _open_json(path)
    if (len(start) >= 9 and start[8:9] == b"{") or path.suffix == ".safetensors":
        return open_safetensors(path)
    if start[:1] == b"\x80" or path.suffix in (".pt", ".pth", ".bin"):
        from .formats.torch_weights import open_torch

        return open_torch(path)
    raise FormatError(f"{path}: starts with {start[:8]!r}, which no known checkpoint does; give {KNOWN}")


def read_index(path: Path) -> dict[str, Json]:
    """What a JSON file says, which may be an index of shards."""
    from .json_file import read_json_object

    return read_json_object(path, MAX_INDEX_BYTES)


def _open_directory(path: Path) -> Checkpoint:
    from .formats.hf_directory import open_directory

    if is_trace(path):  # whose data are no pickles, whatever their suffix
        raise FormatError(
            f"{path}: is a trace, and no checkpoint; firstdrift diff compares two traces, and firstdrift export "
            "--phase weight writes the weights of one"
        )
    return open_directory(path)


def _open_zip(path: Path) -> Checkpoint:
    """PyTorch and numpy both make zip archives; PyTorch's hold a pickle, which numpy's never do."""
    from .formats.torch_weights import holds_pickle, open_torch

    if holds_pickle(path):
        return open_torch(path)
    from .formats.npz_weights import open_npz

    return open_npz(path)


def _open_json(path: Path) -> Checkpoint:
    if is_index(path):
        return open_sharded(path)
    about = read_index(path)
    if "weight_map" in about and "shards" in about:
        from .formats.apr import open_manifest

        return open_manifest(path)
    if "weight_map" in about:
        from .formats.torch_weights import open_torch_index

        if any(name.endswith(".bin") for name in weight_map(about, path).values()):
            return open_torch_index(path)
        return open_sharded(path)
    raise FormatError(f"{path}: is JSON but no index of shards (it has no 'weight_map'); give {KNOWN}")


@without_raising
def is_checkpoint(path: Path) -> bool:
    """Whether `open_checkpoint` is for it. An npz is a trace here: nothing tells one from the other."""
    if path.is_dir():
        return not is_trace(path) and is_checkpoint(weights_file(path)[0])
    start = read_regular(path, 16)
    if start[:4] == ZIP:
        from .formats.torch_weights import holds_pickle

        return holds_pickle(path)
    if start[:1] == b"{":
        return "weight_map" in read_index(path)
    if start[8:9] == b"{" or path.suffix == ".safetensors":
        return not carries_trace(path)
    return start[:4] == b"GGUF" or (start[:3] == b"APR" and start[:4] != STAGE)
