"""The trace directory, format version 1: its file names, its limits and its header."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .._version import __version__
from ..core.strict_json import Json, decode_object, encode
from ..errors import FormatError, SiteError, VersionError

FORMAT = "firstdrift-trace"
VERSION = 1
HEADER = "trace.json"
INDEX = "index.jsonl"
PROGRAM = "program.jsonl"
ALIGNMENT = 64
DATA_FILE_BYTES = 1 << 30  # a new data file once one passes this
MAX_LINE = 16 << 20
MAX_HEADER = 16 << 20
MAX_RANKS = 10_000

_DATA = re.compile(r"data-(\d{5,})\.bin")
_RANK = re.compile(r"rank-(\d{4,})")


def data_file(number: int) -> str:
    """The name of a data file."""
    return f"data-{number:05d}.bin"


def rank_directory(root: Path, rank: int) -> Path:
    """Where a rank's own trace lies; rank 0 is the root itself."""
    return root if rank == 0 else root / f"rank-{rank:04d}"


def data_files(directory: Path) -> list[Path]:
    """The data files that exist, of any number."""
    return [path for path in directory.iterdir() if _DATA.fullmatch(path.name)]


def rank_directories(directory: Path) -> dict[int, Path]:
    """Further ranks that exist below a trace."""
    found = {int(match[1]): path for path in directory.iterdir() if (match := _RANK.fullmatch(path.name))}
    return dict(sorted(found.items()))


def new_header(rank: int, ranks: int, said: Mapping[str, Json]) -> str:
    """trace.json. No clock and no host name in it: equal runs leave equal bytes."""
    header: dict[str, Json] = {
        "format": FORMAT,
        "version": VERSION,
        "producer": f"firstdrift {__version__}",
        "environment": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "system": platform.system(),
            "machine": platform.machine(),
        },
        "rank": rank,
        "ranks": ranks,
    }
    for key in ("format", "version", "rank", "ranks"):
        if key in said:
            raise SiteError(f"{key!r} in the header is set by the writer itself; leave it out")
    if isinstance(said.get("environment"), Mapping):  # what a framework adds stands beside what we know
        said = {**said, "environment": header["environment"] | dict(said["environment"])}
    text = encode(header | dict(said)) + "\n"
    if len(text) > MAX_HEADER:
        raise SiteError(f"a header of {len(text)} bytes is more than {MAX_HEADER}; leave out what is large")
    return text


def parse_header(text: str, path: Path) -> dict[str, Json]:
    """Validate trace.json."""
    try:
        header = decode_object(text)
    except FormatError as error:
        raise FormatError(f"{path}: {error}; restore it, or record the trace again") from None
    if header.get("format") != FORMAT:
        raise FormatError(f"{path}: 'format' is {header.get('format')!r}, not {FORMAT!r}; this is not a trace")
    check_version(header.get("version"), path)
    for key in ("rank", "ranks"):
        if key in header and not (type(header[key]) is int and 0 <= header[key] <= MAX_RANKS):
            raise FormatError(f"{path}: {key!r} is {header[key]!r}, not a whole number up to {MAX_RANKS}; correct it")
    return header


def check_version(version: Json, path: Path) -> None:
    """Accept `1`, `1.2` and `"1.2"`; refuse a higher major version."""
    match = re.fullmatch(r"(\d{1,20})(\.\d+)*", str(version)) if type(version) in (int, float, str) else None
    if not match:
        raise FormatError(f"{path}: 'version' is {version!r}, not a number such as {VERSION}; correct it")
    if int(match[1]) > VERSION:
        raise VersionError(
            f"{path}: format version {version}, but this firstdrift reads up to {VERSION}; upgrade firstdrift"
        )
