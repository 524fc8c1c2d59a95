"""Write safetensors as the library lays them out, but tensor after tensor: the library wants all of them at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..atomic import replacing_path, replacing_together
from ..errors import FormatError
from ..formats.safetensors_file import DTYPES as NAMES
from ..formats.safetensors_file import INDEX_SUFFIX
from ..strict_json import Json, encode
from .jobs import Change, Job, change, shards
from .safetensors_file import CARRIED
from .tensors import Tensor, stored_bytes

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
