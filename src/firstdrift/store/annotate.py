"""Adding to a trace that is closed: what became known of its sites only after the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..core.atomic import replacing
from ..core.sites import Site
from ..core.strict_json import Json, decode_object, encode
from ..errors import storage
from .layout import HEADER, INDEX
from .reader import read

_NEXT = "free some space; the trace is as it was"


def annotate(path: Path, details: Mapping[Site, Mapping[str, Json]], header: Mapping[str, Json]) -> None:
    """Add keys to the lines of some sites and to the header; both files are written whole, by renaming.

    A trace without its end line is left alone: only a closed one has nobody writing to it.
    """
    trace = read(path)
    if not trace.complete:
        return
    sites = [record.site for record in trace.lines]
    with storage(path, "add to the trace", _NEXT):
        lines = (path / INDEX).read_text("utf-8").splitlines()
        with replacing(path / INDEX) as file:
            for line, site in zip(lines, [*sites, None], strict=True):  # the last is the end line
                said = details.get(site) if site is not None else None
                file.write((_with(line, said) + "\n").encode())
        text = (path / HEADER).read_text("utf-8")
        with replacing(path / HEADER) as file:
            file.write((encode(decode_object(text) | dict(header)) + "\n").encode())


def _with(line: str, said: Mapping[str, Json] | None) -> str:
    """The line with keys added at its end; everything else of it stays to the byte."""
    if not said:
        return line
    known = decode_object(line)
    if known.keys() & said.keys():  # a key may stand once in a line
        return encode(known | dict(said))
    return f"{line.rstrip()[:-1]},{encode(dict(said))[1:-1]}}}"
