"""A directory that is about to become a trace: taken, refused, or cleared of an earlier one."""

from __future__ import annotations

from pathlib import Path

from ..errors import TraceExistsError
from .files import AppendFiles
from .layout import HEADER, INDEX, rank_directories


def open_files(directory: Path, overwrite: bool) -> AppendFiles:
    """The files of a trace, under its lock; an existing trace is refused unless it may be overwritten."""
    if is_trace(directory) and not overwrite:
        raise exists(directory)
    directory.mkdir(parents=True, exist_ok=True)
    files = AppendFiles(directory.absolute())
    try:
        if not overwrite and ((directory / HEADER).exists() or not files.is_new):
            raise exists(directory)  # another writer has come and gone since the first look
        files.clear()
    except BaseException:
        files.close()
        raise
    return files


def stale_ranks(root: Path, ranks: int) -> list[Path]:
    """Ranks that an earlier, larger run left behind: they are not of this run."""
    found = rank_directories(root) if root.is_dir() else {}
    return [path for rank, path in found.items() if rank >= ranks and is_trace(path)]


def forget(directories: list[Path]) -> None:
    """Take away traces of ranks that this run does not have."""
    for directory in directories:
        open_files(directory, overwrite=True).close()  # which is refused where a writer is at work
        for name in (INDEX, HEADER):
            (directory / name).unlink(missing_ok=True)


def is_trace(directory: Path) -> bool:
    """Whether a directory holds a trace."""
    return (directory / HEADER).exists() or (directory / INDEX).exists()


def exists(directory: Path) -> TraceExistsError:
    """The refusal to write over a trace."""
    return TraceExistsError(f"{directory}: holds a trace already; choose another path, or overwrite (--force)")
