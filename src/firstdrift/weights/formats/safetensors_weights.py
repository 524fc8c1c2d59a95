"""safetensors: one file, or the shards that an index names. The library validates, the bytes are mapped; written
tensor after tensor as the library lays them out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ...core.atomic import replacing_path
from ...core.dtypes import numpy_dtype
from ...core.mapped import MappedFile
from ...core.strict_json import Json, decode_object, encode
from ...errors import FormatError, naming
from ...store.formats.safetensors_trace import DTYPES as NAMES
from ...store.formats.safetensors_trace import INDEX_SUFFIX, read_claims
from ..checkpoint import Array, Checkpoint, Entry, declared_ties
from ..writing import Job, Shard, Tensor, write_shards

FORMAT = "safetensors"
CARRIED = "firstdrift.metadata"  # metadata that are no strings, as JSON; the format itself has only strings


def open_safetensors(path: Path) -> Checkpoint:
    """Open one file."""
    file = MappedFile(path)
    stored, metadata = read_claims(file)
    entries = {name: Entry(name, held.dtype, held.shape, held.at[2]) for name, held in stored.items()}

    def load(entry: Entry) -> Array:
        view = file.view(stored[entry.name].at[1], entry.nbytes)
        return view.view(numpy_dtype(entry.dtype)).reshape(entry.shape)

    said = _with_carried(metadata, path)
    return Checkpoint(path, FORMAT, entries, load, files=[file], metadata=said, aliases=declared_ties(said, entries))


def _with_carried(metadata: Mapping[str, Json], path: Path) -> dict[str, Json]:
    if CARRIED not in metadata:
        return dict(metadata)
    with naming(f"{path}: its {CARRIED}"):
        carried = decode_object(metadata[CARRIED])
    return {**carried, **{key: value for key, value in metadata.items() if key != CARRIED}}


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


def write(job: Job) -> list[str]:
    """Write one file, or shards and their index."""
    if job.format == FORMAT:
        with replacing_path(job.path) as partial:
            _write_file(job, partial, job.tensors)
        return []

    def index_of(written: list[Shard]) -> str:
        shard_of = {name: file for file, _, names in written for name in names}
        total = sum(tensor.entry.nbytes for tensor in job.tensors)
        return json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(shard_of.items()))}, indent=2)

    write_shards(job, INDEX_SUFFIX, lambda path, part, *_: _write_file(job, path, part), index_of)
    return []


def _write_file(job: Job, path: Path, tensors: list[Tensor]) -> None:
    ordered = sorted(tensors, key=lambda tensor: (_RANK[_CODES[tensor.entry.dtype]], tensor.name.encode()))
    header = _header(ordered, job.metadata)
    if len(header) > MAX_HEADER:
        raise FormatError(f"{job.path}: a header of {len(header)} bytes is more than {MAX_HEADER}; leave metadata out")
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _, data in job.stored(ordered):
            file.write(data)
        job.verify()


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
