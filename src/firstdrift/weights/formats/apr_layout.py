"""The header of an APR file, 64 bytes with a checksum of their own, and its index: one entry a tensor, sorted by
name.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from ...core.dtypes import ITEMSIZE
from ...core.mapped import Bytes
from ...core.records import count_elements
from ...core.sites import shown
from ...errors import FormatError
from ..checkpoint import Entry, overlap
from .apr_metadata import InvalidHeader, InvalidMagic, InvalidTensorIndex, refuse_damage
from .quantized_blocks import quantized_bytes, row_layout

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
    if data[:4] == MAGIC_V1:
        raise InvalidMagic.at(place, "is APR version 1, which has no index of tensors; convert the model to version 2")
    if len(data) < BYTES:
        raise InvalidHeader.at(place, f"{len(data)} bytes are there and a header has {BYTES}; fetch it again")
    if data[:4] != MAGIC:
        raise InvalidMagic.at(place, f"starts with {data[:4]!r}, not {MAGIC!r}; convert it to APR version 2")
    _, major, minor, flags, count, metadata, metadata_size, index, tensors, claimed, _ = _FIELDS.unpack(data[:BYTES])
    actual = checksum(data)
    refuse_damage(place, "the header", claimed, actual)
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
        said = f"metadata to {end}, index from {header.index_offset} and tensors from {header.data_offset} overlap"
        raise InvalidHeader.at(place, f"{said}; fetch it again")
    if header.data_offset > size:
        raise InvalidHeader.at(place, f"its tensors begin at byte {header.data_offset} and it ends at {size}; cut off")


CODES = {
    "f32": 0, "f16": 1, "bf16": 30, "f64": 3, "i32": 4, "i64": 5, "i8": 6, "u8": 7,
    "q4_k": 12, "q6_k": 14, "apr_q4": 128, "apr_q8": 129,
}  # fmt: skip
DTYPES = {code: name for name, code in CODES.items()} | {8: "apr_q4", 9: "apr_q8"}  # 8 and 9 are older spellings
MAX_NAME = 256
MAX_DIMS = 8
_U16 = struct.Struct("<H")


class Placed(NamedTuple):
    """A tensor and the byte of the file where it begins."""

    entry: Entry
    offset: int


def parse_index(data: Bytes, header: Header, size: int, place: object) -> list[Placed]:
    """The entries between the metadata and the tensors, each checked against its dtype and the file."""
    found: list[Placed] = []
    position = 0
    previous = b""
    for number in range(header.tensor_count):
        where = f"{place}, index entry {number}"
        name, code, dims, offset, nbytes, position = _parse_entry(data, position, where)
        if number and name <= previous:
            what = "twice" if name == previous else f"after {shown(previous.decode())!r}"
            raise InvalidTensorIndex.at(where, f"{shown(name.decode())!r} stands {what}; names must ascend")
        previous = name
        found.append(_checked(name.decode(), code, dims, header.data_offset + offset, nbytes, where))
    _check_places(found, header, size, place)
    return found


def pack_entry(entry: Entry, offset: int) -> bytes:
    """The bytes of an entry whose tensor lies so far behind the first one."""
    name = entry.name.encode()
    numbers = struct.pack(f"<{len(entry.shape) + 2}Q", *entry.shape, offset, entry.nbytes)
    return _U16.pack(len(name)) + name + bytes((CODES[entry.dtype], len(entry.shape))) + numbers


def required_bytes(placed: Iterable[Placed], data_offset: int) -> int:
    """Bytes that a file must have, without its footer."""
    return max((item.offset + align(item.entry.nbytes) for item in placed), default=data_offset)


def _parse_entry(data: Bytes, position: int, place: str) -> tuple[bytes, int, list[int], int, int, int]:
    def take(nbytes: int) -> bytes:
        nonlocal position
        part = data[position : position + nbytes].tobytes()
        if len(part) < nbytes:
            raise InvalidTensorIndex.at(place, f"{nbytes} bytes are expected and {len(part)} are left; it is cut off")
        position += nbytes
        return part

    length = _U16.unpack(take(2))[0]
    if length > MAX_NAME:
        raise InvalidTensorIndex.at(place, f"a name of {length} bytes is longer than {MAX_NAME}; rename the tensor")
    name = take(length)
    try:
        name.decode()
    except UnicodeDecodeError as error:
        raise InvalidTensorIndex.at(place, f"the name {name!r} is not UTF-8 ({error.reason}); rename it") from None
    code, ndim = take(2)
    if ndim > MAX_DIMS:
        raise InvalidTensorIndex.at(place, f"{ndim} dimensions are more than {MAX_DIMS}; export it again")
    *dims, offset, nbytes = struct.unpack(f"<{ndim + 2}Q", take(8 * (ndim + 2)))
    return name, code, dims, offset, nbytes, position


def _checked(name: str, code: int, dims: list[int], offset: int, nbytes: int, place: str) -> Placed:
    dtype = DTYPES.get(code)
    if dtype is None:
        hint = "; older writers meant BF16, which is 30 now" if code == 2 else ""
        raise InvalidTensorIndex.at(place, f"{shown(name)!r} has dtype {code}, which is none of {sorted(DTYPES)}{hint}")
    try:
        size = count_elements(shown(name), dims)
        quantized = dtype not in ITEMSIZE
        if quantized and dtype != "apr_q8":
            row_layout(dtype, tuple(dims), nbytes)
        expected = nbytes if quantized and dtype != "apr_q8" else _expected(dtype, size)
    except FormatError as error:
        raise InvalidTensorIndex.at(place, str(error)) from None
    if nbytes != expected and not (dtype == "apr_q8" and size == nbytes == 0):
        raise InvalidTensorIndex.at(
            place,
            f"{shown(name)!r} is {dtype}{dims}, which takes {expected} bytes, and claims {nbytes}; export it again",
        )
    return Placed(Entry(name, dtype, tuple(dims), nbytes, quantized), offset)


def _expected(dtype: str, size: int) -> int:
    return quantized_bytes(dtype, size) if dtype not in ITEMSIZE else size * ITEMSIZE[dtype]


def _check_places(found: list[Placed], header: Header, size: int, place: object) -> None:
    """Every tensor inside the file, and none upon another."""
    required = required_bytes(found, header.data_offset)
    if required > size:
        raise InvalidTensorIndex.at(place, f"its tensors need {required} bytes and the file has {size}; it is cut off")
    if (why := overlap(found)) is not None:
        raise InvalidTensorIndex.at(place, why)
