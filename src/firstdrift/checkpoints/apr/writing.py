"""Write APR files as the format's own writer does: sorted by name, every section padded to 64 bytes, both checksums."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from ...atomic import replacing_path, replacing_together
from ...errors import FormatError
from ...mapped import Bytes
from ...sites import shown
from ...strict_json import Json
from ..jobs import Change, Job, change, shards
from ..tensors import Tensor, stored_bytes
from .header import BYTES, MAX_METADATA, QUANTIZED, ROW_MAJOR, SHARDED, VERSION, Header, align
from .index import CODES, MAX_DIMS, MAX_NAME, Placed, pack_entry
from .metadata import pack_metadata

DTYPES = tuple(CODES)
WIDENED = {
    "f8e4m3fn": "f32", "f8e4m3fnuz": "f32", "f8e5m2": "f32", "f8e5m2fnuz": "f32",
    "bool": "u8", "i16": "i32", "u16": "i32", "u32": "i64",
}  # fmt: skip
MANIFEST_VERSION = "2.0"
MANIFEST_SUFFIX = ".apr.index.json"


def write(job: Job) -> tuple[list[Change], list[str]]:
    """Write one file, or shards and their manifest."""
    for tensor in job.tensors:
        _check(tensor)
    if job.format == "apr":
        with replacing_path(job.path) as partial:
            return _write_file(job, partial, job.tensors, job.metadata, 0), []
    return _write_shards(job), []


def _write_shards(job: Job) -> list[Change]:
    """Complete files first, the manifest last: without it nothing was written."""
    if not job.path.name.endswith(MANIFEST_SUFFIX):
        raise FormatError(f"{job.path}: is where a manifest would be written; end its name in {MANIFEST_SUFFIX}")
    stem = job.path.name.removesuffix(MANIFEST_SUFFIX)
    parts = shards(sorted(job.tensors, key=_by_name), job.shard_bytes)
    total = sum(tensor.entry.nbytes for tensor in job.tensors)
    changes: list[Change] = []
    listed: list[Json] = []
    with replacing_together(job.path) as place:
        for number, part in enumerate(parts):
            name = f"{stem}-{number + 1:05d}-of-{len(parts):05d}.apr"
            about = {"shard_count": len(parts), "shard_index": number, "total_size": total, "pattern": None}
            shard = place(job.path.parent / name)
            changes += _write_file(job, shard, part, {**job.metadata, "sharding": about}, SHARDED)
            size = shard.stat().st_size
            listed.append({"filename": name, "index": number, "size": size, "tensors": [t.name for t in part]})
        manifest = {
            "version": MANIFEST_VERSION,
            "shard_count": len(parts),
            "total_size": total,
            "tensor_count": len(job.tensors),
            "shards": listed,
            "weight_map": {tensor.name: number for number, part in enumerate(parts) for tensor in part},
        }
        place(job.path).write_bytes(json.dumps(manifest, indent=2, ensure_ascii=False).encode())
    return changes


def _write_file(job: Job, path: Path, tensors: list[Tensor], metadata: Mapping[str, Json], flags: int) -> list[Change]:
    ordered = sorted(tensors, key=_by_name)
    said = pack_metadata(metadata, job.path)
    if len(said) > MAX_METADATA:
        raise FormatError(f"{job.path}: {len(said)} bytes of metadata are more than {MAX_METADATA}; leave some out")
    start, placed = _front(ordered, said, flags)
    changes: list[Change] = []
    with open(path, "wb") as file:
        out = _Summed(file)
        out.write(start)
        for tensor, (_, offset) in zip(ordered, placed, strict=True):
            assert out.written == offset
            data, rounding = stored_bytes(tensor)
            out.write(data)
            out.write(bytes(align(data.nbytes) - data.nbytes))
            job.advance(data.nbytes)
            changes += change(tensor, rounding)
        file.write(out.checksum.to_bytes(4, "little"))
        job.verify()
    return changes


def _front(tensors: list[Tensor], metadata: bytes, flags: int) -> tuple[bytes, list[Placed]]:
    """Everything before the tensors, and where each of them will stand."""
    index_offset = BYTES + align(len(metadata))
    index_bytes = sum(20 + len(tensor.name.encode()) + 8 * len(tensor.entry.shape) for tensor in tensors)
    data_offset = index_offset + align(index_bytes)
    placed, offset = [], data_offset
    for tensor in tensors:
        placed.append(Placed(tensor.entry, offset))
        offset += align(tensor.entry.nbytes)
    flags |= ROW_MAJOR | (QUANTIZED if any(tensor.entry.quantized for tensor in tensors) else 0)
    header = Header(VERSION, flags, len(tensors), BYTES, len(metadata), index_offset, data_offset)
    index = b"".join(pack_entry(item, data_offset) for item in placed)
    return header.pack() + _padded(metadata) + _padded(index), placed


def _check(tensor: Tensor) -> None:
    """What an index entry cannot say: the format's own writer would cut it, and lose tensors."""
    name, shape = tensor.name.encode("utf-8", "surrogatepass"), tensor.entry.shape
    if len(name) > MAX_NAME or len(shape) > MAX_DIMS:
        raise FormatError(
            f"tensor {shown(tensor.name)!r}: a name of {len(name)} bytes and {len(shape)} dimensions; APR holds "
            f"{MAX_NAME} and {MAX_DIMS}, rename or reshape it"
        )


def _by_name(tensor: Tensor) -> bytes:
    return tensor.name.encode()


def _padded(data: bytes) -> bytes:
    return data + bytes(align(len(data)) - len(data))


class _Summed:
    """A file whose bytes are summed while they are written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.checksum = 0
        self.written = 0

    def write(self, data: bytes | Bytes) -> None:
        self._file.write(data)
        self.checksum = zlib.crc32(data, self.checksum)
        self.written += len(data)
