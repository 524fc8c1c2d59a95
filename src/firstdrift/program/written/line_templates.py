"""The lines of program.jsonl, version 1, as a writer makes them; docs/trace-format.md specifies them.

Templates, because a call has to be written in a few microseconds; arguments come encoded.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as quote

from ...core.sites import Site
from ...core.strict_json import Json, encode
from ..calls import Place, Type

VERSION = 1
MOST_INLINE = 64  # elements of a constant that is written into its line


def site_text(site: Site) -> str:
    """A site without its step, which is that of the program."""
    call = f",{site.call}" if site.call else ""
    return f'["{site.phase}",{quote(site.name)},{quote(site.port)}{call}]'


def ref_text(node: int, at: int = 0) -> str:
    """A reference to a result."""
    return f'{{"%":[{node},{at}]}}' if at else f'{{"%":{node}}}'


def type_text(number: int, type: Type) -> str:
    """The definition of a type."""
    said: list[Json] = [number, type.dtype, list(type.shape)]
    if type.strides is not None or type.device != "cpu":
        said += [None if type.strides is None else list(type.strides)]
    return encode({"type": said + ([type.device] if type.device != "cpu" else [])})


def place_text(number: int, place: Place) -> str:
    """The definition of a line of code."""
    return encode({"line": [number, place.file, place.line, place.function, *([place.text] if place.text else [])]})
