"""APR containers, version 2: a header, JSON metadata, a sorted index, aligned tensors, and two checksums. Read here,
tensors only after the file's checksum; written as the format's own writer does; and split into shards with a
manifest.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import BinaryIO

from ...core.atomic import replacing_path, replacing_together
from ...core.dtypes import numpy_dtype
from ...core.mapped import Bytes, MappedFile
from ...core.sites import shown
from ...core.strict_json import Json
from ...errors import FormatError
from ...kernels.checksums import crc32
from ..checkpoint import Array, Checkpoint, Entry, declared_ties, joined
from ..json_file import read_json_object
from ..writing import Change, Job, Tensor, change, shards, stored_bytes
from .apr_layout import (
    BYTES,
    CODES,
    FOOTER_BYTES,
    MAGIC_V1,
    MAX_DIMS,
    MAX_METADATA,
    MAX_NAME,
    QUANTIZED,
    ROW_MAJOR,
    SHARDED,
    VERSION,
    Header,
    Placed,
    align,
    check_bounds,
    pack_entry,
    parse_header,
    parse_index,
    required_bytes,
)
from .apr_metadata import ChecksumMismatch, InvalidHeader, open_version1, pack_metadata, parse_metadata
from .quantized_blocks import dequantize
from .safetensors_weights import MAX_INDEX_BYTES, check_shards

FORMAT = "apr"
_CHUNK = 16 << 20


def open_apr(path: Path) -> Checkpoint:
    """Open one file of version 2; version 1 is recognised, and has no tensors."""
    file = MappedFile(path)
    start = file.read(0, BYTES)
    if start[:4] == MAGIC_V1:
        return open_version1(file)
    header = parse_header(start, path)
    check_bounds(header, file.size, path)
    metadata = parse_metadata(file.read(header.metadata_offset, header.metadata_size), path)
    index = file.view(header.index_offset, header.data_offset - header.index_offset)
    placed = {item.entry.name: item for item in parse_index(index, header, file.size, path)}
    claimed = _footer(file, header, list(placed.values()))

    @cache
    def verify() -> None:
        if claimed is not None:
            _compare_footer(file, claimed)

    def stored(entry: Entry) -> Bytes:
        verify()
        return file.view(placed[entry.name].offset, entry.nbytes)

    def load(entry: Entry) -> Array:
        data = stored(entry)
        if entry.quantized:
            return dequantize(entry.dtype, data, entry.shape)
        return data.view(numpy_dtype(entry.dtype)).reshape(entry.shape)

    entries = {name: item.entry for name, item in placed.items()}
    notes = [] if claimed is not None else ["the file has no checksum at its end"]
    shards = metadata.get("sharding")
    if header.flags & SHARDED and shards:
        notes.append(
            f"this is shard {shards.get('shard_index')} of {shards.get('shard_count')}; its manifest opens all"
        )
    return Checkpoint(
        path, FORMAT, entries, load, files=[file], metadata=metadata, aliases=declared_ties(metadata, entries),
        notes=notes, load_blocks=stored, verify=verify,
    )  # fmt: skip


def _footer(file: MappedFile, header: Header, placed: list[Placed]) -> int | None:
    """The checksum at the end, or None for a file that was written without one."""
    required = required_bytes(placed, header.data_offset)
    if file.size == required:
        return None
    if file.size != required + FOOTER_BYTES:
        raise InvalidHeader.at(
            file.path,
            f"its tensors end at byte {required} and the file at {file.size}, which is neither that nor "
            f"{FOOTER_BYTES} more; fetch it again",
        )
    return int.from_bytes(file.read(required, FOOTER_BYTES), "little")


def _compare_footer(file: MappedFile, claimed: int) -> None:
    actual = 0
    end = file.size - FOOTER_BYTES
    for start in range(0, end, _CHUNK):
        actual = crc32(file.view(start, min(_CHUNK, end - start)), actual)
    if actual != claimed:
        raise ChecksumMismatch.at(
            file.path, f"the file claims checksum {claimed:08X} and has {actual:08X}; it is damaged, fetch it again"
        )


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


def open_manifest(path: Path) -> Checkpoint:
    """Open the shards of a manifest: each complete, each what the manifest says of it."""
    said = read_json_object(path, MAX_INDEX_BYTES)
    shards = _listed(said, path)
    names = check_shards({str(number): shard["filename"] for number, shard in enumerate(shards)}, path)
    if len(names) != len(shards):
        raise FormatError(f"{path}: lists {len(shards)} shards in {len(names)} files; fetch it again")
    parts = [_open_shard(path, shard, len(shards)) for shard in shards]
    whole = joined(path, FORMAT, parts, {**parts[0].metadata, "sharding": None} if parts else {})
    if said.get("tensor_count") != len(whole):
        raise FormatError(
            f"{path}: counts {said.get('tensor_count')} tensors and its shards hold {len(whole)}; fetch it again"
        )
    where: dict[str, Json] = said["weight_map"]
    held = {name: number for number, part in enumerate(parts) for name in part.entries}
    if where != held:
        wrong = next(iter(sorted(set(where) ^ set(held) or {n for n in held if where[n] != held[n]})), "")
        raise FormatError(f"{path}: its 'weight_map' is wrong about {shown(wrong)!r}; fetch the shards again")
    return whole


def _listed(said: dict[str, Json], path: Path) -> list[dict[str, Json]]:
    shards = said.get("shards")
    if type(shards) is not list or not shards or not all(type(shard) is dict for shard in shards):
        raise FormatError(f"{path}: has no list of 'shards'; fetch it again")
    if type(said.get("weight_map")) is not dict:
        raise FormatError(f"{path}: has no 'weight_map' from tensors to shards; fetch it again")
    if said.get("shard_count") != len(shards):
        raise FormatError(f"{path}: says {said.get('shard_count')} shards and lists {len(shards)}; fetch it again")
    for number, shard in enumerate(shards):
        if type(shard.get("filename")) is not str or shard.get("index") != number:
            raise FormatError(f"{path}: shard {number} has no 'filename', or another 'index'; fetch it again")
    return shards


def _open_shard(manifest: Path, shard: dict[str, Json], count: int) -> Checkpoint:
    """One shard, compared with what the manifest and its own metadata say of its place."""
    path = manifest.parent / shard["filename"]
    size = path.stat().st_size
    if shard.get("size") not in (None, size):
        raise FormatError(f"{path}: has {size} bytes and its manifest says {shard['size']}; fetch it again")
    part = open_apr(path)
    own = part.metadata.get("sharding")
    if type(own) is dict and (own.get("shard_count"), own.get("shard_index")) != (count, shard["index"]):
        raise FormatError(
            f"{path}: says it is shard {own.get('shard_index')} of {own.get('shard_count')}, its manifest "
            f"{shard['index']} of {count}; fetch it again"
        )
    listed = shard.get("tensors")
    if listed is not None and not (type(listed) is list and _same_names(listed, part)):
        raise FormatError(f"{path}: does not hold the tensors that its manifest lists; fetch it again")
    return part


def _same_names(listed: list[Json], part: Checkpoint) -> bool:
    return all(type(name) is str for name in listed) and sorted(listed) == sorted(part.entries)
