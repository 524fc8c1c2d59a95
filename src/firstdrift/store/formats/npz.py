"""npz archives: a zip of npy files. Stored members are mapped in place, compressed ones are read when asked for."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as numpy_format

from ...core.atomic import replacing_path
from ...core.dtypes import ITEMSIZE, ML_NAMES, numpy_dtype
from ...core.records import Record
from ...core.regular import open_regular
from ...core.scratch import scratch
from ...core.traces import Array, Trace
from ...errors import FirstdriftError, FormatError, TraceExistsError, storage, without_raising
from . import carried
from .carried import Stored
from .npy import NpyHeader, read_npy_header
from .site_keys import keys_of

NAME = "npz"
INDEX = "__firstdrift__.json"
MAX_INDEX_BYTES = 16 << 20  # of an index that is larger than the archive it lies in
MAX_DEFLATE_RATIO = 1100  # deflate cannot do better than 1032 to 1; a claim above this is a lie
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile inflates by any other beyond what it is asked for
INFLATED = 1 << 20  # bytes inflated at a time
_LOCAL_HEADER = 30
_END_RECORD = 22


@without_raising
def recognise(path: Path) -> bool:
    """Whether a file is a zip archive that is named npz."""
    return path.suffix.lower() == ".npz" and path.is_file()


class Archive(NamedTuple):
    """The arrays of an archive by key, how to read those that cannot be mapped, and the index it carries."""

    stored: dict[str, Stored]
    special: dict[str, Callable[[], Array]]
    carried: str | None


def read(path: Path) -> Trace:
    """Open an archive; keys of archives that are not ours are read as `firstdrift.store.formats.site_keys` says."""
    stored, special, index = read_archive(path)
    said, lines, problems = carried.read_container(index, stored, str(path), otherwise="fwd")
    keys = {held.at: key for key, held in stored.items()}
    by_site = {r.site: _as(special[keys[r.at]], r) for r in lines if r.at in keys and keys[r.at] in special}
    return Trace(path, NAME, lines, lambda number: path, header=said, problems=problems, special=by_site)


def read_archive(path: Path) -> Archive:
    """What an archive holds, every claim checked against the file."""
    with storage(path, "read the archive", "check that it exists and that you may read it"), open_regular(path) as file:
        try:
            return _read(path, file)
        except (FirstdriftError, OSError):
            raise
        except Exception as error:  # zipfile raises nine kinds of error on hostile archives; to us they are one
            raise FormatError(f"{path}: not a readable npz archive ({error}); save it again with numpy") from None


def _read(path: Path, file: BinaryIO) -> Archive:
    size = os.fstat(file.fileno()).st_size
    stored: dict[str, Stored] = {}
    special: dict[str, Callable[[], Array]] = {}
    index: str | None = None
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            place = f"{path}, member {info.filename!r}"
            _check_claims(info, size, place)
            if info.filename == INDEX:
                if index is not None:
                    raise FormatError(f"{place}: is there twice; export the trace again")
                index = archive.read(info).decode("utf-8")
                continue
            if not info.filename.endswith(".npy"):
                raise FormatError(f"{place}: is not a .npy file; save it again with numpy")
            key = info.filename.removesuffix(".npy")
            if key in stored:
                raise FormatError(f"{place}: is there twice; give every array its own name")
            start = _data_start(file, info, place)
            with archive.open(info) as member:
                header = read_npy_header(member, info.file_size, place)  # type: ignore[arg-type]
            stored[key] = Stored(header.dtype, header.shape, (0, start + header.offset, header.nbytes))
            if info.compress_type != zipfile.ZIP_STORED or not header.is_plain:
                special[key] = _reader(path.absolute(), info.filename, header)
        _check_frame(file, size, archive, path)
    return Archive(stored, special, index)


def write(trace: Trace, path: Path, *, overwrite: bool, advance: Callable[[int], None]) -> list[str]:
    """Write a trace as an uncompressed archive that numpy can load, its index carried along."""
    if path.exists() and not overwrite:
        raise TraceExistsError(f"{path}: exists; choose another path, or overwrite (--force)")
    keys = keys_of(record.site for record in trace.records if record.at is not None)
    with storage(path, "write the archive", "choose a place that you may write, with room for it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_path(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
            for record in trace.records:
                if record.at is None:
                    continue
                array = trace.array(record)
                if record.dtype in ML_NAMES:
                    array = array.view(f"u{ITEMSIZE[record.dtype]}")
                write_member(archive, keys[record.site], array)
                advance(record.nbytes)
            trace.check_unchanged()
            archive.writestr(_member(INDEX), carried.write_index(trace, keys))
    return []


def write_member(archive: zipfile.ZipFile, key: str, array: Array) -> None:
    """Add an array to an archive, stored without compression."""
    with archive.open(_member(f"{key}.npy"), "w", force_zip64=True) as member:
        numpy_format.write_array(member, array, version=(1, 0), allow_pickle=False)


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name)  # dated 1980: equal traces give equal archives


def _check_claims(info: zipfile.ZipInfo, size: int, place: str) -> None:
    if info.flag_bits & 1:
        raise FormatError(f"{place}: is encrypted; save it without a password")
    if info.header_offset + info.compress_size > size:
        raise FormatError(f"{place}: claims {info.compress_size} bytes at {info.header_offset}, the file has {size}")
    if info.file_size > info.compress_size * MAX_DEFLATE_RATIO + 64:
        raise FormatError(f"{place}: claims to grow from {info.compress_size} to {info.file_size} bytes, a lie")
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        raise FormatError(
            f"{place}: is stored, and claims {info.file_size} bytes of {info.compress_size}; save it again"
        )
    if info.compress_type not in METHODS:
        raise FormatError(f"{place}: is compressed by method {info.compress_type}, not deflate (8); save it with numpy")
    if info.filename == INDEX and info.file_size > max(size, MAX_INDEX_BYTES):
        said = f"would grow to {info.file_size} bytes in an archive of {size}, which no index does"
        raise FormatError(f"{place}: {said}; export the trace again")


def _check_frame(file: BinaryIO, size: int, archive: zipfile.ZipFile, path: Path) -> None:
    """zipfile finds an archive among other bytes; what those are, nobody knows."""
    before = min((info.header_offset for info in archive.infolist()), default=0)
    file.seek(max(0, size - _END_RECORD - len(archive.comment)))
    if before or file.read(4) != b"PK\x05\x06":
        where = f"{before} bytes stand before" if before else "bytes follow"
        raise FormatError(f"{path}: {where} the archive, as if files were joined; save it again with numpy")


def _data_start(file: BinaryIO, info: zipfile.ZipInfo, place: str) -> int:
    file.seek(info.header_offset)
    local = file.read(_LOCAL_HEADER)
    if len(local) < _LOCAL_HEADER or local[:4] != b"PK\x03\x04":
        raise FormatError(f"{place}: no local header at byte {info.header_offset}; save it again with numpy")
    name, extra = int.from_bytes(local[26:28], "little"), int.from_bytes(local[28:30], "little")
    return info.header_offset + _LOCAL_HEADER + name + extra


def _reader(path: Path, member: str, header: NpyHeader) -> Callable[[], Array]:
    def read_member() -> Array:
        try:
            with open_regular(path) as whole, zipfile.ZipFile(whole) as archive, archive.open(member) as file:
                file.read(header.offset)
                flat, found = _inflated(file, header)
        except FirstdriftError:
            raise
        except Exception as error:  # as in `read`: one thing to us
            raise FormatError(f"{path}, member {member!r}: cannot be read ({error}); save it again") from None
        if found != header.nbytes:
            raise FormatError(f"{path}, member {member!r}: {header.nbytes} bytes expected, {found} found")
        return flat.reshape(header.shape, order="F" if header.fortran else "C")

    return read_member


def _inflated(file: IO[bytes], header: NpyHeader) -> tuple[Array, int]:
    """The numbers of a member, and how many bytes of them were there; a piece at a time, a large one in a file."""
    flat = scratch((header.nbytes // header.stored.itemsize,), header.stored)
    data = flat.view(np.uint8)
    found = 0
    while found < header.nbytes and (part := file.read(min(INFLATED, header.nbytes - found))):
        data[found : found + len(part)] = np.frombuffer(part, np.uint8)
        found += len(part)
    flat.flags.writeable = False
    return flat, found


def _as(reader: Callable[[], Array], record: Record) -> Callable[[], Array]:
    """The member as its record's dtype: bfloat16 and float8 lie there as unsigned integers."""
    if record.dtype not in ML_NAMES:
        return reader
    dtype, unsigned = numpy_dtype(record.dtype), f"<u{ITEMSIZE[record.dtype]}"
    return lambda: np.asarray(reader(), unsigned).view(dtype)
