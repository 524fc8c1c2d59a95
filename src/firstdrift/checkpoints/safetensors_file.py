"""safetensors: one file, or the shards that an index names. The library validates, the bytes are mapped."""

from __future__ import annotations

from pathlib import Path

from ..dtypes import numpy_dtype
from ..errors import FormatError
from ..formats.safetensors_file import DTYPES, INDEX_SUFFIX
from ..sites import shown
from ..strict_json import Json
from .checkpoint import Array, Checkpoint, Entry, joined, plain_bytes
from .json_file import read_json_object
from .mapped import MappedFile

FORMAT = "safetensors"
SHARDED = "safetensors-sharded"
MAX_INDEX_BYTES = 256 << 20


def open_safetensors(path: Path) -> Checkpoint:
    """Open one file."""
    from safetensors import SafetensorError, safe_open

    file = MappedFile(path)
    try:
        with safe_open(path, "np") as opened:
            metadata = opened.metadata() or {}
            slices = {key: opened.get_slice(key) for key in opened.offset_keys()}
            claims = {key: (held.get_dtype(), held.get_shape()) for key, held in slices.items()}
    except SafetensorError as error:
        raise FormatError(f"{path}: not a valid safetensors file ({error}); download or export it again") from None
    offset = 8 + int.from_bytes(file.read(0, 8), "little")  # the library has checked that nothing lies between
    entries: dict[str, Entry] = {}
    offsets: dict[str, int] = {}
    for name, (kind, shape) in claims.items():
        place = f"{path}, tensor {shown(name)!r}"
        if kind not in DTYPES:
            raise FormatError(f"{place}: has dtype {kind}, which is not one of {', '.join(DTYPES)}; convert it")
        entries[name] = Entry(name, DTYPES[kind], tuple(shape), plain_bytes(place, DTYPES[kind], shape))
        offsets[name] = offset
        offset += entries[name].nbytes
    if offset != file.size:
        raise FormatError(f"{path}: its tensors end at byte {offset} but it has {file.size}; it changed while read")

    def load(entry: Entry) -> Array:
        view = file.view(offsets[entry.name], entry.nbytes)
        return view.view(numpy_dtype(entry.dtype)).reshape(entry.shape)

    return Checkpoint(path, FORMAT, entries, load, files=[file], metadata=metadata)


def open_sharded(index: Path) -> Checkpoint:
    """Open the shards of an index: every tensor in the shard the index says, and in no other."""
    about = read_json_object(index, MAX_INDEX_BYTES)
    shard_of = _weight_map(about.get("weight_map"), index)
    parts = {}
    for name in dict.fromkeys(shard_of.values()):
        file = index.parent / name
        if not file.is_file():
            raise FormatError(f"{index}: names the shard {name}, which is not there; fetch it")
        parts[name] = open_safetensors(file)
    checkpoint = joined(index, SHARDED, list(parts.values()), metadata=_metadata(about, parts))
    for key, name in shard_of.items():
        if key not in parts[name].entries:
            raise FormatError(f"{index}: says that {name} holds {shown(key)!r}, and it does not; fetch the shards again")
    for key in checkpoint.entries:
        if key not in shard_of:
            raise FormatError(f"{index}: does not list {shown(key)!r}, which a shard holds; fetch the shards again")
    return checkpoint


def _metadata(about: dict[str, Json], parts: dict[str, Checkpoint]) -> dict[str, Json]:
    said = about.get("metadata")
    shards: dict[str, Json] = {}
    for part in parts.values():
        shards |= part.metadata
    return shards | (said if isinstance(said, dict) else {})


def _weight_map(said: Json, index: Path) -> dict[str, str]:
    if type(said) is not dict or not said or not all(type(name) is str for name in said.values()):
        raise FormatError(f"{index}: has no 'weight_map' from tensors to files; fetch it again")
    for name in set(said.values()):
        check_plain_name(name, index)
    return said


def check_plain_name(name: str, index: Path) -> None:
    """Refuse a shard that lies anywhere but beside its index."""
    if name != Path(name).name or name in ("", ".", "..") or "\\" in name or "\0" in name:
        raise FormatError(f"{index}: shard {shown(name)!r} is not a plain file name beside the index; fetch it again")


def is_index(path: Path) -> bool:
    """Whether a file is named like the index of shards."""
    return path.name.endswith(INDEX_SUFFIX)
