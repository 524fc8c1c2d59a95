"""program.jsonl, version 1, as any engine writes it; docs/trace-format.md specifies it.

Calls are written by templates, because one has to be written in a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from json.encoder import encode_basestring_ascii as quote

from ...core.sites import Site
from ...core.strict_json import Json, encode
from ..calls import Place, Type
from .repeats import Whole

VERSION = 1
MOST_INLINE = 64  # elements of a constant that is written into its line
SMALL = 1024  # bytes of a step that repeats another one
MOST_BYTES = 64 << 20  # of a step's text; a longer one is not compared with others


def site_text(site: Site) -> str:
    """A site without its step, which is that of the program."""
    call = f",{site.call}" if site.call else ""
    return f'["{site.phase}",{quote(site.name)},{quote(site.port)}{call}]'


def ref_text(node: int, at: int = 0) -> str:
    """A reference to a result."""
    return f'{{"%":[{node},{at}]}}' if at else f'{{"%":{node}}}'


class ProgramWriter:
    """Writes a program step by step through `append`; `header` is asked for when there is a first step.

    What recurs (types, modules, functions, lines of code) is defined once, and has a number from then on.
    """

    def __init__(self, append: Callable[[str], object], header: Callable[[], dict[str, Json]]) -> None:
        self._append = append
        self._header = header
        self._numbers: dict[str, dict[Hashable, int]] = {}
        self._new: list[str] = []  # definitions that are not written yet
        self._written = 0  # lines in the file
        self._whole: Whole | None = None  # the last step that was written in full
        self._last: Sequence[str] | None = None  # the last step

    def type(self, type: Type) -> int:
        """The number of a type."""
        said: list[Json] = [type.dtype, list(type.shape)]
        if type.strides is not None or type.device != "cpu":
            said.append(None if type.strides is None else list(type.strides))
        return self._number("type", type, said + ([type.device] if type.device != "cpu" else []))

    def module(self, name: str) -> int:
        """The number of a module."""
        return self._number("module", name, [name])

    def function(self, name: str) -> int:
        """The number of a function."""
        return self._number("function", name, [name])

    def line(self, place: Place) -> int:
        """The number of a line of code."""
        said: list[Json] = [place.file, place.line, place.function]
        return self._number("line", place, said + ([place.text] if place.text else []))

    def _number(self, kind: str, item: Hashable, said: list[Json]) -> int:
        known = self._numbers.setdefault(kind, {})
        if item not in known:
            self._new.append(encode({kind: [len(known), *said]}))  # first: what cannot be written has no number
            known[item] = len(known)
        return known[item]

    def write(self, step: int, lines: Sequence[str]) -> None:
        """Write a step as its lines, or as what differs from the last one that was written in full."""
        short = sum(map(len, lines)) <= MOST_BYTES
        like = self._like(step, lines) if short else None
        if like is not None and self._whole is not None:
            said = [encode({"step": step, "like": self._whole.step, **like})]
        else:
            said = [f'{{"step":{step},"lines":{len(lines)}}}', *lines]
            self._whole = Whole(step, lines) if short else None
        self._last = lines if short else None
        said = [*([] if self._written else [encode(self._header())]), *self._new, *said]
        self._new = []
        self._written += len(said)
        self._append("\n".join(said) + "\n")

    def _like(self, step: int, lines: Sequence[str]) -> dict[str, Json] | None:
        """What differs from the last step in full; None to write this one in full, because later ones are like it."""
        like = None if self._whole is None else self._whole.differences(lines)
        if like is None or self._last is None or len(encode(like)) <= SMALL:
            return like
        nearer = Whole(step, self._last).differences(lines)
        return None if nearer is not None and len(encode(nearer)) <= SMALL else like

    def close(self) -> None:
        """Write the end line, if anything was written."""
        if self._written:
            self._append(f'{{"end":{self._written}}}\n')
