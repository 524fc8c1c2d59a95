"""Which lines a release changed: a cause that was replayed at one of them has found the place in the code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

NAMED = re.compile(r"\b(\w+\.py):(\d+)\b")


def names_a_changed_line(sentence: str, fixed: Path, buggy: Path) -> bool:
    """Whether a sentence names a line of the fixed release that is not in the buggy one."""
    named = {(name, int(line)) for name, line in NAMED.findall(sentence)}
    return any(line in lines for name, line in named for lines in _changed(name, fixed, buggy))


def _changed(name: str, fixed: Path, buggy: Path) -> Iterable[set[int]]:
    """The lines, of every file of that name."""
    for path in fixed.rglob(name):
        other = buggy / path.relative_to(fixed)
        if other.is_file():
            yield changed_lines(other.read_text().splitlines(), path.read_text().splitlines())


def changed_lines(before: list[str], after: list[str]) -> set[int]:
    """Lines of the new text, from 1, that are new; where lines are only gone, the ones that took their place."""
    found: set[int] = set()
    for tag, _, _, start, end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            found.update(range(start + 1, max(end, start + 1) + 1))
    return found
