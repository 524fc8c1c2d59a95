"""The one door to every checkpoint: what a path holds is told by its first bytes, not by its name."""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from pathlib import Path

from ..aprt import MAGIC as STAGE
from ..core.regular import read_regular
from ..core.sites import shown
from ..core.strict_json import Json
from ..errors import FormatError, storage, without_raising
from ..store.formats.native_format import recognise as is_trace
from ..store.formats.safetensors_trace import INDEX_SUFFIX, carries_trace, weight_map
from .checkpoint import Checkpoint, joined
from .formats.hf_directory import open_directory, weights_file
from .json_file import read_json_object

KNOWN = "safetensors (or its index), APR v2, GGUF, npz, PyTorch, or a Hugging Face directory"
MAX_INDEX_BYTES = 64 << 20
OPENERS = {  # imported when a file asks for them
    "apr": "formats.apr.open_apr",
    "gguf": "formats.gguf_file.open_gguf",
    "npz": "formats.npz_weights.open_npz",
    "safetensors": "formats.safetensors_weights.open_safetensors",
    "torch": "formats.torch_weights.open_torch",
}


def open_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Open weights in any known format; arrays are loaded when they are asked for."""
    path = Path(path)
    with storage(path, "read the checkpoint", "check that it exists and that you may read it"):
        path.stat()
        if not path.is_dir():
            start = read_regular(path, 16)
            kind = _kind(path, start)
            return _open_index(path) if kind == "index" else _open_as(kind, path, start)
        if is_trace(path):  # whose data are no pickles, whatever their suffix
            other = "firstdrift diff compares two traces, firstdrift export --phase weight writes the weights of one"
            raise FormatError(f"{path}: is a trace, and no checkpoint; {other}")
        return open_directory(path, open_checkpoint)


def _kind(path: Path, start: bytes) -> str | None:
    """What a file is by its first bytes, and by its name where those say nothing."""
    if start[:4] == STAGE:
        return "stage"
    if start[:3] == b"APR":
        return "apr"
    if start[:4] == b"GGUF":
        return "gguf"
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):  # a zip archive, which may be empty
        from .formats.torch_weights import holds_pickle

        return "torch" if holds_pickle(path) else "npz"
    if start[:1] == b"{":
        return "index"
    if (len(start) >= 9 and start[8:9] == b"{") or path.suffix == ".safetensors":
        return "safetensors"
    return "torch" if start[:1] == b"\x80" or path.suffix in (".pt", ".pth", ".bin") else None


def _open_as(kind: str | None, path: Path, start: bytes = b"") -> Checkpoint:
    if kind == "stage":
        raise FormatError(f"{path}: is an APRT stage file, and no checkpoint; firstdrift diff --values compares two")
    if kind is None:
        raise FormatError(f"{path}: starts with {start[:8]!r}, which no known checkpoint does; give {KNOWN}")
    module, name = OPENERS[kind].rsplit(".", 1)
    try:
        opener = getattr(import_module(f".{module}", __package__), name)
    except ModuleNotFoundError as error:
        raise FormatError(f"{path}: {kind} needs {error.name}; pip install 'firstdrift[{kind}]'") from None
    opened: Checkpoint = opener(path)
    return opened


def _open_index(path: Path) -> Checkpoint:
    about = read_json_object(path, MAX_INDEX_BYTES)
    if "weight_map" in about and "shards" in about:
        from .formats.apr import open_manifest

        return open_manifest(path, about)
    if "weight_map" not in about and not path.name.endswith(INDEX_SUFFIX):
        raise FormatError(f"{path}: is JSON but no index of shards (it has no 'weight_map'); give {KNOWN}")
    return _open_shards(path, about)


def _open_shards(index: Path, about: dict[str, Json]) -> Checkpoint:
    """Open the shards of an index: every tensor in the shard the index says, and in no other."""
    shard_of = weight_map(about, index)
    names = list(dict.fromkeys(shard_of.values()))
    kind = "torch" if any(name.endswith(".bin") for name in names) else "safetensors"
    parts = {name: _open_as(kind, index.parent / name) for name in names}
    metadata: dict[str, Json] = {}
    for part in parts.values():
        metadata |= part.metadata
    if kind == "safetensors" and isinstance(about.get("metadata"), dict):
        metadata |= about["metadata"]
    whole = joined(index, "pt" if kind == "torch" else "safetensors-sharded", list(parts.values()), metadata)
    for key, name in shard_of.items():
        if key not in parts[name]:
            raise FormatError(f"{index}: says that {name} holds {shown(key)!r}, and it does not; fetch both again")
    for key in whole.entries:
        if key not in shard_of:
            raise FormatError(f"{index}: does not list {shown(key)!r}, which a shard holds; fetch the shards again")
    return whole


@without_raising
def is_checkpoint(path: Path) -> bool:
    """Whether `open_checkpoint` is for it. An npz is a trace here: nothing tells one from the other."""
    if path.is_dir():
        return not is_trace(path) and is_checkpoint(weights_file(path))
    start = read_regular(path, 16)
    kind = _kind(path, start)
    if kind == "index":
        return "weight_map" in read_json_object(path, MAX_INDEX_BYTES)
    if kind == "safetensors":
        return not carries_trace(path)
    return kind in ("apr", "gguf") or (kind == "torch" and start[:2] == b"PK")  # an old pickle is told by nothing
