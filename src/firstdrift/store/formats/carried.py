"""A trace's index carried inside a foreign file, so that nothing but the bytes' container changes.

The text is JSON: the header, and one object a site, with the key of its tensor in place of `at`. A dtype that
the container does not know (bfloat16 in npz) is stored as unsigned integers of its size and named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...core.dtypes import ITEMSIZE, ML_NAMES
from ...core.records import At, Record, parse_record
from ...core.sites import Site, first_repeated
from ...core.strict_json import Json, decode_object, encode
from ...core.traces import Trace, doubts
from ...errors import FormatError, VersionError, naming
from .site_keys import site_of

NAME = "firstdrift"
VERSION = 1


class Stored(NamedTuple):
    """A tensor as its container describes it."""

    dtype: str
    shape: tuple[int, ...]
    at: At


class Contents(NamedTuple):
    """A container as a trace has it."""

    header: dict[str, Json]
    lines: list[Record]
    problems: list[str]


def write_index(trace: Trace, keys: Mapping[Site, str]) -> str:
    """The text to carry."""
    sites = []
    for record in trace.lines:
        line = record.to_json()
        del line["at"]
        line.pop("crc32", None)
        line.pop("key", None)
        if record.at is not None:
            line["key"] = keys[record.site]
        sites.append(line)
    header = {key: item for key, item in trace.header.items() if key not in ("format", "version")} | doubts(trace)
    return encode({"version": VERSION, "header": header, "sites": sites})


def read_container(text: str | None, stored: Mapping[str, Stored], place: str, *, otherwise: str) -> Contents:
    """What a container holds: by the index it carries, or else by what its keys mean."""
    if text is not None:
        contents = _read_index(text, stored, place)
    else:
        with naming(place):
            records = [Record(site_of(key, otherwise=otherwise), *held) for key, held in stored.items()]
        contents = Contents({}, records, [])
    if (same := first_repeated(record.site for record in contents.lines)) is not None:
        raise FormatError(f"{place}: two of its tensors are {contents.lines[same[0]].site}; rename one")
    return contents


def _read_index(text: str, stored: Mapping[str, Stored], place: str) -> Contents:
    with naming(f"{place}: its {NAME} index"):
        index = decode_object(text)
        version, header, sites = index.get("version"), index.get("header"), index.get("sites")
        if type(version) is not int or version < 1:
            raise FormatError(f"its version {version!r} is not a number such as {VERSION}; export the trace again")
        if version > VERSION:
            raise VersionError(f"version {version}, but this firstdrift reads up to {VERSION}; upgrade firstdrift")
        if type(header) is not dict or type(sites) is not list:
            raise FormatError("lacks 'header' or 'sites'; export the trace again")
        used: set[str] = set()
        records = [_record(site, stored, used) for site in sites]
    problems = [f"{key!r} is not in the {NAME} index; it was added later" for key in stored if key not in used]
    return Contents(header, records, problems)


def _record(line: Json, stored: Mapping[str, Stored], used: set[str]) -> Record:
    if type(line) is not dict:
        raise FormatError(f"{line!r} is not an object; export the trace again")
    line = {**line, "at": None}
    key = line.pop("key", None)
    if key is not None:
        if type(key) is not str or key not in stored:
            raise FormatError(f"names the tensor {key!r}, which is not there; export the trace again")
        if key in used:
            raise FormatError(f"gives the tensor {key!r} to two sites; export the trace again")
        used.add(key)
        held = stored[key]
        if line.get("shape") != list(held.shape) or not _same_bits(line.get("dtype"), held.dtype):
            said = f"{key!r} is {line.get('dtype')}{line.get('shape')} in the index"
            raise FormatError(f"{said} and {held.dtype}{list(held.shape)} in the file; export the trace again")
        line["at"] = list(held.at)
    return parse_record(line)


def _same_bits(dtype: Json, held: str) -> bool:
    return dtype == held or (type(dtype) is str and dtype in ML_NAMES and held == f"u{8 * ITEMSIZE[dtype]}")
