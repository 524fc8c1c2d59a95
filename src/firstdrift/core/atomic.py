"""Files that appear whole or not at all."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .regular import check_regular

PARTIAL = ".partial"
_numbers = itertools.count()  # threads may write the same file at once; the last one stays


@contextmanager
def replacing_path(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the place of `path` when the block ends well."""
    path = _replaceable(path)
    partial = _beside(path)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends well."""
    with replacing_path(path) as partial, open(partial, "wb") as file:
        yield file  # closed before it is renamed: the last entered is the first left


@contextmanager
def replacing_together(index: Path) -> Iterator[Callable[[Path], Path]]:
    """For files that `index` makes into one: a function that gives a path to write to for each, the index's last.

    They take their places when all are written. The old index goes first and the new one comes last, so that no index
    ever names files of two writers.
    """
    partials: dict[Path, Path] = {}

    def place(path: Path) -> Path:
        path = _replaceable(path)
        return partials.setdefault(path, _beside(path))

    try:
        yield place
        _replaceable(index).unlink(missing_ok=True)
        for path, partial in partials.items():
            partial.replace(path)
    except BaseException:
        for partial in partials.values():
            partial.unlink(missing_ok=True)
        raise


def _replaceable(path: Path) -> Path:
    """What a link points to is replaced, not the link; and a device, which all programs share, never is."""
    with suppress(FileNotFoundError):
        check_regular(path)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name[:100]}.{os.getpid()}.{next(_numbers)}{PARTIAL}")
