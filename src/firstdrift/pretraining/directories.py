"""Directories that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL, OLD = ".partial", ".old"


@contextmanager
def replacing_directory(path: Path) -> Iterator[Path]:
    """A directory beside `path` to fill; it takes the place of `path` when the block ends well, else it is gone."""
    partial = path.with_name(f".{path.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        _to_disk(partial)
        _exchange(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def remove_partial(parent: Path) -> None:
    """Remove what killed writers have left, and put back what one of them had set aside to make room."""
    for old in parent.glob(f".*{OLD}{PARTIAL}"):
        path = old.with_name(old.name[1:].removesuffix(f"{OLD}{PARTIAL}"))
        if not path.exists():
            old.rename(path)
    for partial in parent.glob(f".*{PARTIAL}"):
        shutil.rmtree(partial, ignore_errors=True)


def _exchange(new: Path, path: Path) -> None:
    """Directories cannot be renamed over each other: an old one steps aside first."""
    if not path.exists():
        new.rename(path)
        return
    old = path.with_name(f".{path.name}{OLD}{PARTIAL}")
    shutil.rmtree(old, ignore_errors=True)
    path.rename(old)
    try:
        new.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _to_disk(directory: Path) -> None:
    """Make sure that bytes are on the disk before a name says that they are."""
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            with open(file, "r+b") as opened:  # to be written to, or some systems refuse
                os.fsync(opened.fileno())
