"""APR containers, version 2: a header, JSON metadata, a sorted index, aligned tensors, and two checksums. Read here,
tensors only after the file's checksum; written as the format's own writer does; and split into shards with a
manifest.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path

from ...core.atomic import replacing_path
from ...core.dtypes import numpy_dtype
from ...core.mapped import Bytes, MappedFile
from ...core.sites import shown
from ...core.strict_json import Json
from ...errors import FormatError
from ...kernels.checksums import crc32
from ...store.formats.safetensors_trace import check_shards
from ..checkpoint import Array, Checkpoint, Entry, declared_ties, joined
from ..writing import Job, Shard, Tensor, write_shards
from .apr_layout import (
    BYTES,
    CODES,
    FOOTER_BYTES,
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
from .apr_metadata import InvalidHeader, pack_metadata, parse_metadata, refuse_damage
from .quantized_blocks import dequantize

FORMAT = "apr"
_CHUNK = 16 << 20


def open_apr(path: Path) -> Checkpoint:
    """Open one file of version 2; version 1 is recognised, and has no tensors."""
    file = MappedFile(path)
    start = file.read(0, BYTES)
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
        said = f"its tensors end at byte {required} and the file at {file.size}, which is neither that nor"
        raise InvalidHeader.at(file.path, f"{said} {FOOTER_BYTES} more; fetch it again")
    return int.from_bytes(file.read(required, FOOTER_BYTES), "little")


def _compare_footer(file: MappedFile, claimed: int) -> None:
    actual = 0
    end = file.size - FOOTER_BYTES
    for start in range(0, end, _CHUNK):
        actual = crc32(file.view(start, min(_CHUNK, end - start)), actual)
    refuse_damage(file.path, "the file", claimed, actual)


DTYPES = tuple(CODES)
WIDENED = {
    "f8e4m3fn": "f32", "f8e4m3fnuz": "f32", "f8e5m2": "f32", "f8e5m2fnuz": "f32",
    "bool": "u8", "i16": "i32", "u16": "i32", "u32": "i64",
}  # fmt: skip
MANIFEST_VERSION = "2.0"
MANIFEST_SUFFIX = ".apr.index.json"


def write(job: Job) -> list[str]:
    """Write one file, or shards and their manifest."""
    for tensor in job.tensors:
        _check(tensor)
    if job.format == FORMAT:
        with replacing_path(job.path) as partial:
            _write_file(job, partial, job.tensors, job.metadata, 0)
        return []
    total = sum(tensor.entry.nbytes for tensor in job.tensors)

    def write_shard(path: Path, part: list[Tensor], number: int, count: int) -> None:
        about = {"shard_count": count, "shard_index": number, "total_size": total, "pattern": None}
        _write_file(job, path, part, {**job.metadata, "sharding": about}, SHARDED)

    def index_of(written: list[Shard]) -> str:
        return json.dumps(_manifest(written, total), indent=2, ensure_ascii=False)

    by_name = replace(job, tensors=sorted(job.tensors, key=_by_name))
    write_shards(by_name, MANIFEST_SUFFIX, write_shard, index_of)
    return []


def _manifest(files: Sequence[Shard], total: int) -> dict[str, Json]:
    """What a manifest says of shards: of each its name, its bytes, and the names of its tensors."""
    return {
        "version": MANIFEST_VERSION,
        "shard_count": len(files),
        "total_size": total,
        "tensor_count": sum(len(names) for _, _, names in files),
        "shards": [
            {"filename": file, "index": number, "size": size, "tensors": names}
            for number, (file, size, names) in enumerate(files)
        ],
        "weight_map": {name: number for number, (_, _, names) in enumerate(files) for name in names},
    }


def _write_file(job: Job, path: Path, tensors: list[Tensor], metadata: Mapping[str, Json], flags: int) -> None:
    ordered = sorted(tensors, key=_by_name)
    said = pack_metadata(metadata, job.path)
    if len(said) > MAX_METADATA:
        raise FormatError(f"{job.path}: {len(said)} bytes of metadata are more than {MAX_METADATA}; leave some out")

    def pieces() -> Iterator[bytes | Bytes]:
        yield _front(ordered, said, flags)
        for _, data in job.stored(ordered):
            yield data
            yield bytes(align(data.nbytes) - data.nbytes)

    checksum = 0
    with open(path, "wb") as file:
        for piece in pieces():
            file.write(piece)
            checksum = zlib.crc32(piece, checksum)
        file.write(checksum.to_bytes(4, "little"))
        job.verify()


def _front(tensors: list[Tensor], metadata: bytes, flags: int) -> bytes:
    """Everything before the tensors."""
    index_offset = BYTES + align(len(metadata))
    index_bytes = sum(20 + len(tensor.name.encode()) + 8 * len(tensor.entry.shape) for tensor in tensors)
    data_offset = index_offset + align(index_bytes)
    offsets = accumulate((align(tensor.entry.nbytes) for tensor in tensors), initial=0)
    index = b"".join(pack_entry(tensor.entry, offset) for tensor, offset in zip(tensors, offsets, strict=False))
    flags |= ROW_MAJOR | (QUANTIZED if any(tensor.entry.quantized for tensor in tensors) else 0)
    header = Header(VERSION, flags, len(tensors), BYTES, len(metadata), index_offset, data_offset)
    return header.pack() + b"".join(part.ljust(align(len(part)), b"\0") for part in (metadata, index))


def _check(tensor: Tensor) -> None:
    """What an index entry cannot say: the format's own writer would cut it, and lose tensors."""
    name, shape = tensor.name.encode("utf-8", "surrogatepass"), tensor.entry.shape
    if len(name) > MAX_NAME or len(shape) > MAX_DIMS:
        most = f"names of {MAX_NAME} bytes and {MAX_DIMS} dimensions"
        raise FormatError(f"tensor {shown(tensor.name)!r}: APR holds {most}; rename or reshape it")


def _by_name(tensor: Tensor) -> bytes:
    return tensor.name.encode()


def open_manifest(path: Path, said: dict[str, Json]) -> Checkpoint:
    """Open the shards of a manifest: each complete, each what the manifest says of it."""
    listed = said.get("shards")
    if type(listed) is not list or not listed or not all(type(shard) is dict for shard in listed):
        raise FormatError(f"{path}: has no list of 'shards'; fetch it again")
    names = [shard.get("filename") for shard in listed]
    if not all(type(name) is str for name in names) or len(set(names)) < len(names):
        raise FormatError(f"{path}: has shards without a 'filename' of their own; fetch it again")
    check_shards(names, path)
    parts = [open_apr(path.parent / name) for name in names]
    whole = joined(path, FORMAT, parts, {**parts[0].metadata, "sharding": None})
    expected = _manifest([(part.path.name, part.files[0].size, list(part.entries)) for part in parts], whole.nbytes)
    for key in ("shard_count", "tensor_count", "weight_map"):
        _refuse_other(path, key, said.get(key), expected[key])
    for number, (shard, found) in enumerate(zip(listed, expected["shards"], strict=True)):
        for key in found:
            if key == "index" or shard.get(key) is not None:
                _refuse_other(path, f"shard {number}, {key}", shard.get(key), found[key])
        own = parts[number].metadata.get("sharding")
        if type(own) is dict:
            place = [own.get("shard_index"), own.get("shard_count")]
            _refuse_other(parts[number].path, "shard_index and shard_count", place, [number, len(parts)])
    return whole


def _refuse_other(place: Path, what: str, said: Json, found: Json) -> None:
    """Refuse what a manifest says otherwise than its shards; names stand in any order."""
    if said == found or (type(said) is type(found) is list and sorted(map(str, said)) == sorted(map(str, found))):
        return
    if type(said) is type(found) is dict:
        wrong = [key for key in {**said, **found} if said.get(key) != found.get(key)]
        said, found = {key: said.get(key) for key in wrong}, {key: found.get(key) for key in wrong}
    raise FormatError(f"{place}: says {what} {said!r:.80}, and its shards {found!r:.80}; fetch it again")
