"""safetensors: one file, or the shards that an index names. The library validates, the bytes are mapped."""

from __future__ import annotations

from pathlib import Path

from ..dtypes import numpy_dtype
from ..errors import FormatError, storage
from ..formats.border import naming
from ..formats.safetensors_file import DTYPES, INDEX_SUFFIX
from ..mapped import MappedFile
from ..sites import shown
from ..strict_json import Json, decode_object
from .checkpoint import Array, Checkpoint, Entry, joined, plain_bytes
from .json_file import read_json_object
from .ties import declared_ties

FORMAT = "safetensors"
SHARDED = "safetensors-sharded"
MAX_INDEX_BYTES = 64 << 20
CARRIED = "firstdrift.metadata"  # metadata that are no strings, as JSON; the format itself has only strings


def open_safetensors(path: Path) -> Checkpoint:
    """Open one file."""
    from safetensors import SafetensorError, safe_open

    file = MappedFile(path)
    try:
        with safe_open(path, "np") as opened:
            metadata: dict[str, Json] = opened.metadata() or {}
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

    said = _with_carried(metadata, path)
    return Checkpoint(path, FORMAT, entries, load, files=[file], metadata=said, aliases=declared_ties(said, entries))


def _with_carried(metadata: dict[str, Json], path: Path) -> dict[str, Json]:
    if CARRIED not in metadata:
        return metadata
    with naming(f"{path}: its {CARRIED}"):
        carried = decode_object(metadata[CARRIED])
    return {**carried, **{key: value for key, value in metadata.items() if key != CARRIED}}


def open_sharded(index: Path) -> Checkpoint:
    """Open the shards of an index: every tensor in the shard the index says, and in no other."""
    about = read_json_object(index, MAX_INDEX_BYTES)
    shard_of = weight_map(about, index)
    parts = {name: open_safetensors(index.parent / name) for name in check_shards(shard_of, index)}
    metadata: dict[str, Json] = {}
    for part in parts.values():
        metadata |= part.metadata
    said = about.get("metadata")
    checkpoint = joined(index, SHARDED, list(parts.values()), metadata | (said if isinstance(said, dict) else {}))
    for key, name in shard_of.items():
        if key not in parts[name].entries:
            raise FormatError(
                f"{index}: says that {name} holds {shown(key)!r}, and it does not; fetch the shards again"
            )
    for key in checkpoint.entries:
        if key not in shard_of:
            raise FormatError(f"{index}: does not list {shown(key)!r}, which a shard holds; fetch the shards again")
    return checkpoint


def weight_map(about: dict[str, Json], index: Path) -> dict[str, str]:
    """Which shard holds which tensor, as an index says it."""
    said = about.get("weight_map")
    if type(said) is not dict or not said or not all(type(name) is str for name in said.values()):
        raise FormatError(f"{index}: has no 'weight_map' from tensors to files; fetch it again")
    return said


def check_shards(shard_of: dict[str, str], index: Path) -> list[str]:
    """The shards in order of appearance, each a file beside the index."""
    names = list(dict.fromkeys(shard_of.values()))
    for name in names:
        if name != Path(name).name or name in ("", ".", "..") or "\\" in name or "\0" in name:
            raise FormatError(f"{index}: shard {shown(name)!r} is not a plain name beside the index; fetch it again")
        with storage(index, "look for its shards", "fetch it again"):  # a name may be too long for the system
            found = (index.parent / name).is_file()
        if not found:
            raise FormatError(f"{index}: names the shard {shown(name)}, which is not there; fetch it")
    return names


def is_index(path: Path) -> bool:
    """Whether a file is named like the index of shards."""
    return path.name.endswith(INDEX_SUFFIX)
