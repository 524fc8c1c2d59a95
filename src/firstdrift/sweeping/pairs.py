"""A directory of finished pairs: DIR/CASE/reference and DIR/CASE/candidate, or DIR/reference/CASE and so on."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import FirstdriftError, NotFoundError, SelectionError, storage
from ..opening import open_trace
from .cases import Case

SIDES = {
    "reference": ("reference", "ref", "dump_pt"),
    "candidate": ("candidate", "cand", "dump_c"),
    "truth": ("truth", "float64"),
}


def find_pairs(directory: Path) -> tuple[list[Case], dict[str, dict[str, Path]]]:
    """The cases of a directory, and the traces of each; one that lacks a side is a case too."""
    if not directory.is_dir():
        raise NotFoundError(f"{directory}: there is no such directory; name one that holds pairs of traces")
    with storage(directory, "list the pairs", "check the path"):
        sides = _sides(directory)
        if "reference" in sides and "candidate" in sides:
            found = {directory.resolve().name: sides} if is_trace(sides["reference"]) else _by_side(sides)
        else:
            found = {path.name: one for path in sorted(directory.iterdir()) if path.is_dir() and (one := _sides(path))}
    if not found:
        hint = "name them CASE/reference and CASE/candidate, or reference/CASE and candidate/CASE"
        raise SelectionError(f"{directory}: holds no pairs of traces; {hint}")
    names = sorted(found, key=_natural)
    return [{"pair": name} for name in names], found


def is_trace(path: Path) -> bool:
    """Whether a path can be opened as a trace of any format."""
    try:
        open_trace(path)
    except FirstdriftError:
        return False
    return True


def _sides(directory: Path) -> dict[str, Path]:
    """What of a directory is a side; a file may have any suffix."""
    found: dict[str, Path] = {}
    for path in sorted(directory.iterdir()):
        for side, names in SIDES.items():
            if path.name in names or (path.is_file() and path.stem in names):
                found.setdefault(side, path)
    return found


def _by_side(sides: dict[str, Path]) -> dict[str, dict[str, Path]]:
    found: dict[str, dict[str, Path]] = {}
    for side, directory in sides.items():
        for path in sorted(directory.iterdir()):
            found.setdefault(path.stem if path.is_file() else path.name, {})[side] = path
    return found


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Names with numbers in their own order: batch-2 before batch-10."""
    return tuple((part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name))
