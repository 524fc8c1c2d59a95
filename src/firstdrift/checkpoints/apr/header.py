"""The header of an APR file: 64 bytes, a quarter of them for where things are, with a checksum of their own."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from .errors import ChecksumMismatch, InvalidHeader, InvalidMagic

MAGIC = b"APR\0"
MAGIC_V1 = b"APRN"
BYTES = 64
ALIGNMENT = 64
FOOTER_BYTES = 4
MAX_METADATA = 100_000_000  # bytes; the format declares 16 MiB, and its reader takes more
VERSION = (2, 0)

LZ4, ZSTD, ENCRYPTED = 0x0001, 0x0002, 0x0004
SHARDED, QUANTIZED = 0x0010, 0x0020
ROW_MAJOR, COLUMN_MAJOR = 0x0400, 0x0800
UNREADABLE = {LZ4: "compressed (LZ4)", ZSTD: "compressed (ZSTD)", ENCRYPTED: "encrypted"}

_FIELDS = struct.Struct("<4sBBHIQIQQI20s")
_CHECKSUM = slice(40, 44)


class Header(NamedTuple):
    """What a header says; offsets count from the start of the file."""

    version: tuple[int, int]
    flags: int
    tensor_count: int
    metadata_offset: int
    metadata_size: int
    index_offset: int
    data_offset: int

    def pack(self) -> bytes:
        """The 64 bytes, checksum included."""
        fields = (MAGIC, *self.version, *self[1:], 0, bytes(20))
        data = bytearray(_FIELDS.pack(*fields))
        data[_CHECKSUM] = checksum(bytes(data)).to_bytes(4, "little")
        return bytes(data)


def align(size: int) -> int:
    """The next multiple of 64."""
    return (size + ALIGNMENT - 1) & ~(ALIGNMENT - 1)


def checksum(header: bytes) -> int:
    """CRC-32 of the header without its own field."""
    return zlib.crc32(header[44:BYTES], zlib.crc32(header[:40]))


def parse_header(data: bytes, place: object) -> Header:
    """Read a header in the order of the format's own reader: length, magic, checksum, layout."""
    if len(data) < BYTES:
        raise InvalidHeader.at(place, f"{len(data)} bytes are there and a header has {BYTES}; fetch it again")
    magic = data[:4]
    if magic != MAGIC:
        raise InvalidMagic.at(place, f"starts with {magic!r}, not {MAGIC!r}; convert it to APR version 2")
    _, major, minor, flags, count, metadata, metadata_size, index, tensors, claimed, _ = _FIELDS.unpack(data[:BYTES])
    actual = checksum(data)
    if claimed != actual:
        raise ChecksumMismatch.at(
            place, f"the header claims checksum {claimed:08X} and has {actual:08X}; it is damaged, fetch it again"
        )
    if flags & COLUMN_MAJOR:
        raise InvalidHeader.at(place, "its tensors are column-major (flag 0800); import the model again, row-major")
    for flag, what in UNREADABLE.items():
        if flags & flag:
            raise InvalidHeader.at(place, f"it is {what} (flag {flag:04X}), which has no layout; write it plainly")
    return Header((major, minor), flags, count, metadata, metadata_size, index, tensors)


def check_bounds(header: Header, size: int, place: object) -> None:
    """Refuse sections that lie outside of the file, or upon each other."""
    end = header.metadata_offset + header.metadata_size
    if end > size:
        raise InvalidHeader.at(place, f"its metadata ends at byte {end} and the file at {size}; fetch it again")
    if header.metadata_size > MAX_METADATA:
        raise InvalidHeader.at(place, f"{header.metadata_size} bytes of metadata are more than {MAX_METADATA}")
    if header.metadata_offset < BYTES:
        raise InvalidHeader.at(place, f"its metadata begins at byte {header.metadata_offset}, inside of the header")
    if not end <= header.index_offset <= header.data_offset:
        raise InvalidHeader.at(
            place,
            f"metadata to {end}, index from {header.index_offset} and tensors from {header.data_offset} overlap; "
            "fetch it again",
        )
    if header.data_offset > size:
        raise InvalidHeader.at(place, f"its tensors begin at byte {header.data_offset} and it ends at {size}; cut off")
