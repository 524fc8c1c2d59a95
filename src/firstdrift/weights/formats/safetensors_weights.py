"""safetensors: one file, or the shards that an index names. The library validates, the bytes are mapped; written
tensor after tensor as the library lays them out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ...core.atomic import replacing_path, replacing_together
from ...core.dtypes import numpy_dtype
from ...core.mapped import MappedFile
from ...core.sites import shown
from ...core.strict_json import Json, decode_object, encode
from ...errors import FormatError, storage
from ...store.formats.border import naming
from ...store.formats.safetensors_trace import DTYPES as NAMES
from ...store.formats.safetensors_trace import INDEX_SUFFIX
from ..checkpoint import Array, Checkpoint, Entry, declared_ties, joined, plain_bytes
from ..json_file import read_json_object
from ..writing import Change, Job, Tensor, change, shards, stored_bytes

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
        if kind not in NAMES:
            raise FormatError(f"{place}: has dtype {kind}, which is not one of {', '.join(NAMES)}; convert it")
        entries[name] = Entry(name, NAMES[kind], tuple(shape), plain_bytes(place, NAMES[kind], shape))
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


DTYPES = tuple(NAMES.values())
WIDENED: Mapping[str, str] = {}
MAX_HEADER = 100_000_000  # what the library refuses beyond
_CODES = {name: code for code, name in NAMES.items()}
# The library's own order: wide dtypes first, so that every tensor is aligned, then by name.
_ORDER = (
    "U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "F8_E5M2FNUZ", "F8_E4M3FNUZ",
    "F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL",
)  # fmt: skip
_RANK = {code: rank for rank, code in enumerate(_ORDER)}


def write(job: Job) -> tuple[list[Change], list[str]]:
    """Write one file, or shards and their index."""
    if job.format == "safetensors":
        with replacing_path(job.path) as partial:
            return _write_file(job, partial, job.tensors), []
    return _write_shards(job), []


def _write_shards(job: Job) -> list[Change]:
    """Shards first, the index last: without it nothing was written."""
    if not job.path.name.endswith(INDEX_SUFFIX):
        raise FormatError(f"{job.path}: is where an index would be written; end its name in {INDEX_SUFFIX}")
    stem = job.path.name.removesuffix(INDEX_SUFFIX)
    parts = shards(job.tensors, job.shard_bytes)
    changes: list[Change] = []
    shard_of: dict[str, str] = {}
    total = sum(tensor.entry.nbytes for tensor in job.tensors)
    with replacing_together(job.path) as place:
        for number, part in enumerate(parts, 1):
            name = f"{stem}-{number:05d}-of-{len(parts):05d}.safetensors"
            changes += _write_file(job, place(job.path.parent / name), part)
            shard_of |= {tensor.name: name for tensor in part}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(shard_of.items()))}
        place(job.path).write_bytes(json.dumps(index, indent=2).encode())
    return changes


def _write_file(job: Job, path: Path, tensors: list[Tensor]) -> list[Change]:
    ordered = sorted(tensors, key=lambda tensor: (_RANK[_CODES[tensor.entry.dtype]], tensor.name.encode()))
    header = _header(ordered, job.metadata)
    if len(header) > MAX_HEADER:
        raise FormatError(f"{job.path}: a header of {len(header)} bytes is more than {MAX_HEADER}; leave metadata out")
    changes: list[Change] = []
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor in ordered:
            data, rounding = stored_bytes(tensor)
            file.write(data)
            job.advance(data.nbytes)
            changes += change(tensor, rounding)
        job.verify()
    return changes


def _header(tensors: list[Tensor], metadata: Mapping[str, Json]) -> bytes:
    """The JSON in front, padded to eight bytes. Metadata are strings there; other values go together as one."""
    said: dict[str, Json] = {}
    texts = {key: value for key, value in metadata.items() if isinstance(value, str) and key != CARRIED}
    if len(texts) < len(metadata):
        texts[CARRIED] = encode({key: value for key, value in metadata.items() if key not in texts})
    if texts:
        said["__metadata__"] = texts
    offset = 0
    for tensor in tensors:
        entry = tensor.entry
        if entry.name == "__metadata__":
            raise FormatError("tensor '__metadata__': safetensors keeps this name for itself; rename it")
        end = offset + entry.nbytes
        said[entry.name] = {"dtype": _CODES[entry.dtype], "shape": list(entry.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return text + b" " * (-len(text) % 8)
