"""APR version 1 (`APRN`): another container, with a classic model's payload and no index of tensors.

It is recognised, so that a reader can say what it is; it has no tensors and says nothing of an architecture.
"""

from __future__ import annotations

import struct
import zlib

from ...mapped import MappedFile
from ..checkpoint import Array, Checkpoint, Entry
from .errors import InvalidTensorIndex

FORMAT = "apr"
_HEADER = struct.Struct("<4sBBHIIIBBB9s")
_SMALLEST = 36
_MAX_UNCOMPRESSED = 1 << 30
_COMPRESSIONS = ("none", "zstd-3", "zstd-19", "LZ4")


def open_version1(file: MappedFile) -> Checkpoint:
    """A checkpoint without tensors, whose notes say what the file is and what is wrong with it."""
    notes = ["this is APR version 1: it has no index of tensors, convert the model to version 2", *_doubts(file)]

    def load(entry: Entry) -> Array:
        raise InvalidTensorIndex.at(file.path, f"APR version 1 has no tensor {entry.name!r}")

    return Checkpoint(file.path, FORMAT, {}, load, files=[file], notes=notes)


def _doubts(file: MappedFile) -> list[str]:
    """What a reader of version 1 would refuse, in its order."""
    if file.size < _SMALLEST:
        return [f"it has {file.size} bytes and needs {_SMALLEST}"]
    _, major, minor, kind, metadata, payload, uncompressed, compression, _, _, _ = _HEADER.unpack(file.read(0, 32))
    claimed = int.from_bytes(file.read(file.size - 4, 4), "little")
    actual = zlib.crc32(file.view(0, file.size - 4))
    doubts = []
    if claimed != actual:
        doubts.append(f"its checksum is {claimed:08X} and should be {actual:08X}")
    if major > 1:
        doubts.append(f"its version is {major}.{minor}, above 1")
    if not (1 <= kind <= 0x0A or kind in (0x10, 0x11, 0x12, 0x20, 0x21, 0x30, 0x40, 0xFF)):
        doubts.append(f"its model type {kind:#x} is unknown")
    if uncompressed > _MAX_UNCOMPRESSED:
        doubts.append(f"it claims to grow to {uncompressed} bytes, more than {_MAX_UNCOMPRESSED}")
    if compression >= len(_COMPRESSIONS):
        doubts.append(f"its compression {compression} is unknown")
    if 32 + metadata + payload > file.size - 4:
        doubts.append(f"its payload would end at byte {32 + metadata + payload}, beyond {file.size - 4}")
    return doubts
