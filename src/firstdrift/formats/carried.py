"""A trace's index carried inside a foreign file, so that nothing but the bytes' container changes.

The text is JSON: the header, and one object a site, with the key of its tensor in place of `at`. A dtype that
the container does not know (bfloat16 in npz) is stored as unsigned integers of its size and named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..dtypes import ITEMSIZE
from ..errors import FirstdriftError, FormatError
from ..records import At, Record, parse_record
from ..strict_json import Json, decode_object, encode
from ..traces import Trace
from .keys import key_of

NAME = "firstdrift"
VERSION = 1


class Stored(NamedTuple):
    """A tensor as its container describes it."""

    dtype: str
    shape: tuple[int, ...]
    at: At


def write_index(trace: Trace) -> str:
    """The text to carry."""
    sites = []
    for record in trace.lines:
        line = record.to_json()
        del line["at"]
        line.pop("crc32", None)
        if record.at is not None:
            line["key"] = key_of(record.site)
        sites.append(line)
    header = {key: item for key, item in trace.header.items() if key not in ("format", "version")}
    return encode({"version": VERSION, "header": header, "sites": sites})


def read_index(text: str, stored: Mapping[str, Stored], place: str) -> tuple[dict[str, Json], list[Record]]:
    """The header and the records, checked against what the container really holds."""
    try:
        index = decode_object(text)
        version, header, sites = index.get("version"), index.get("header"), index.get("sites")
        if type(version) is not int or version > VERSION:
            raise FormatError(f"version {version!r} is not {VERSION}; upgrade firstdrift")
        if type(header) is not dict or type(sites) is not list:
            raise FormatError("it lacks 'header' or 'sites'; export the trace again")
        records = [_record(site, stored) for site in sites]
    except FirstdriftError as error:
        raise FormatError(f"{place}: its {NAME} index is damaged: {error}") from None
    return header, records


def _record(line: Json, stored: Mapping[str, Stored]) -> Record:
    if type(line) is not dict:
        raise FormatError(f"{line!r} is not an object; export the trace again")
    line = {**line, "at": None}
    key = line.pop("key", None)
    if key is not None:
        if type(key) is not str or key not in stored:
            raise FormatError(f"no tensor {key!r} is there; export the trace again")
        held = stored[key]
        if line.get("shape") != list(held.shape) or not _same_bits(line.get("dtype"), held.dtype):
            raise FormatError(
                f"{key!r} is {line.get('dtype')}{line.get('shape')} in the index and {held.dtype}{list(held.shape)} in "
                "the file; export the trace again"
            )
        line["at"] = list(held.at)
    return parse_record(line)


def _same_bits(dtype: Json, held: str) -> bool:
    return dtype == held or (dtype in ITEMSIZE and held == f"u{8 * ITEMSIZE[dtype]}")
