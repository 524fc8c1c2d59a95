"""Commands with placeholders: `{start}` is a variable of the cases, `{out}` where the trace goes, `{{` a brace."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from ..errors import SelectionError
from ..strict_json import Json
from .cases import RESERVED, Case

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)(?::([^{}]*))?\}")


def split(command: str, side: str) -> tuple[str, ...]:
    """The words of a command, by the rules of a POSIX shell; no shell runs it."""
    try:
        words = shlex.split(command, posix=os.name != "nt")
    except ValueError as error:
        raise SelectionError(f"--{side} {command!r}: cannot be split into words ({error}); close the quote") from None
    if not words:
        raise SelectionError(f"--{side}: the command is empty; give one, with {{out}} where its trace goes")
    return tuple(words)


def placeholders(words: Sequence[str]) -> set[str]:
    """The names in braces."""
    return {found[1] for word in words for found in _PLACEHOLDER.finditer(word) if found[1]}


def check(words: Sequence[str], variables: Collection[str], side: str) -> None:
    """Refuse a command with a placeholder that no case has, or with nowhere to write to."""
    named = placeholders(words)
    known = ", ".join(f"{{{name}}}" for name in (*variables, RESERVED))
    for name in sorted(named - {*variables, RESERVED}):
        hint = f"use one of {known}, or write {{{{{name}}}}} for a brace that is meant"
        raise SelectionError(f"--{side}: there is no placeholder {{{name}}}; {hint}")
    if RESERVED not in named:
        what = "no placeholder at all" if not named else "no {out}"
        raise SelectionError(f"--{side}: has {what}, so its trace could not be found; write --out {{out}}, or alike")


def check_used(used: set[str], variables: Collection[str]) -> None:
    """Refuse variables that nobody reads: every case would be the same run, or a name is misspelt."""
    for name in variables:
        if name not in used:
            raise SelectionError(f"the cases have {name!r}, which neither side uses; write {{{name}}} where it belongs")


def fill(words: Sequence[str], case: Case, out: Path, side: str) -> list[str]:
    """The command of one case. A value stays within its word, whatever it holds."""
    values = {**case, RESERVED: str(out)}

    def filled(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][0]
        return _formatted(values[found[1]], found[2] or "", side)

    return [_PLACEHOLDER.sub(filled, word) for word in words]


def files_of(words: Sequence[str]) -> dict[str, list[int]]:
    """Size and time of change of every file that a command names: a port that was built again is another one."""
    found = {}
    for word in (shutil.which(words[0]) or words[0], *words[1:]):
        for text in (word, word.partition("=")[2]):
            if text and "{" not in text and Path(text).is_file():
                stat = Path(text).stat()
                found[text] = [stat.st_size, stat.st_mtime_ns]
    return found


def _formatted(value: Json, spec: str, side: str) -> str:
    try:
        return format(value, spec)
    except (ValueError, TypeError) as error:
        raise SelectionError(f"--{side}: the format {spec!r} does not fit {value!r} ({error}); drop it") from None
