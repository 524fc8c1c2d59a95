"""Read APR files: headers at once, tensors when asked for, and none before the file's checksum was compared."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..._kernels.checksums import crc32
from ...dtypes import numpy_dtype
from ...mapped import Bytes, MappedFile
from ..blocks import dequantize
from ..checkpoint import Array, Checkpoint, Entry
from ..ties import declared_ties
from .errors import ChecksumMismatch, InvalidHeader
from .header import BYTES, FOOTER_BYTES, MAGIC_V1, SHARDED, Header, check_bounds, parse_header
from .index import Placed, parse_index, required_bytes
from .metadata import parse_metadata
from .version1 import open_version1

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
