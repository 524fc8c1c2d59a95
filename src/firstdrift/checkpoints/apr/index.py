"""The index of an APR file: one entry a tensor, sorted by name, with offsets relative to where tensors begin."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from ...dtypes import ITEMSIZE
from ...errors import FormatError
from ...mapped import Bytes
from ...sites import shown
from ..blocks import quantized_bytes, row_layout
from ..checkpoint import Entry, count_elements
from .errors import InvalidTensorIndex
from .header import Header, align

CODES = {
    "f32": 0, "f16": 1, "bf16": 30, "f64": 3, "i32": 4, "i64": 5, "i8": 6, "u8": 7,
    "q4_k": 12, "q6_k": 14, "apr_q4": 128, "apr_q8": 129,
}  # fmt: skip
DTYPES = {code: name for name, code in CODES.items()} | {8: "apr_q4", 9: "apr_q8"}  # 8 and 9 are older spellings
MAX_NAME = 256
MAX_DIMS = 8
_U16, _U64 = struct.Struct("<H"), struct.Struct("<Q")


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


def pack_entry(placed: Placed, data_offset: int) -> bytes:
    """The bytes of an entry."""
    entry = placed.entry
    name = entry.name.encode()
    return b"".join(
        (
            _U16.pack(len(name)),
            name,
            bytes((CODES[entry.dtype], len(entry.shape))),
            *(_U64.pack(dim) for dim in entry.shape),
            _U64.pack(placed.offset - data_offset),
            _U64.pack(entry.nbytes),
        )
    )


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
    numbers = [_U64.unpack(take(8))[0] for _ in range(ndim + 2)]
    return name, code, numbers[:-2], numbers[-2], numbers[-1], position


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
    end, before = header.data_offset, ""
    for entry, offset in sorted(found, key=lambda item: item.offset):
        if entry.nbytes and offset < end:
            raise InvalidTensorIndex.at(place, f"{shown(entry.name)!r} lies upon {shown(before)!r}; export it again")
        if entry.nbytes:
            end, before = offset + entry.nbytes, entry.name
