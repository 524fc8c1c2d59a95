"""A directory that becomes a trace: taken, refused, or cleared of an earlier one. And the two files a writer appends
to: data, then the index line that makes the data exist.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from ..errors import TraceExistsError, TraceInUseError
from .layout import ALIGNMENT, DATA_FILE_BYTES, HEADER, INDEX, PROGRAM, data_file, data_files, rank_directories
from .lock import acquire

At = tuple[int, int, int]


class AppendFiles:
    """Unbuffered data files and index of one trace directory, under the writer's lock.

    Every line reaches the operating system before `append` returns, so a killed process loses nothing that was
    put; only a crash of the machine itself can.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data: io.FileIO | None = None
        self._number = -1
        self._end = 0  # of the open data file
        self._lines_end = 0  # of the index
        descriptor = os.open(directory / INDEX, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        self._index = io.FileIO(descriptor, "r+", closefd=True)
        if not acquire(descriptor):
            self._index.close()
            raise TraceInUseError(f"{directory}: another writer has this trace open; wait for it or use another path")

    @property
    def is_new(self) -> bool:
        """Whether nobody has written an index here before."""
        return os.fstat(self._index.fileno()).st_size == 0

    def clear(self) -> None:
        """Forget an earlier trace: the index first, so that no line ever points at bytes that are not its own."""
        self._index.truncate(0)
        (self._directory / PROGRAM).unlink(missing_ok=True)
        for path in data_files(self._directory):
            path.unlink()  # not truncated: whoever has it mapped keeps the old bytes

    def append(self, data: memoryview) -> At:
        """Write a tensor's bytes behind those already there."""
        if self._data is None or self._end >= DATA_FILE_BYTES:
            self._next_data_file()
        assert self._data is not None
        start = -(-self._end // ALIGNMENT) * ALIGNMENT
        if data.nbytes:
            if start != self._end:
                self._data.seek(start)
            _write_all(self._data, data)
            self._end = start + data.nbytes
        return self._number, start, data.nbytes

    def rewrite(self, at: At, data: memoryview) -> None:
        """Replace the bytes of a tensor that no line names yet."""
        with io.FileIO(self._directory / data_file(at[0]), "r+") as file:
            file.seek(at[1])
            _write_all(file, data)

    def append_line(self, line: bytes) -> None:
        """Write an index line; one that did not fit is taken back whole."""
        try:
            _write_all(self._index, memoryview(line))
        except BaseException:
            self._index.truncate(self._lines_end)
            raise
        self._lines_end += len(line)

    def append_program(self, text: bytes) -> None:
        """Write lines of the program; what did not fit is taken back whole."""
        with io.FileIO(self._directory / PROGRAM, "a") as file:
            end = file.seek(0, io.SEEK_END)
            try:
                _write_all(file, memoryview(text))
            except BaseException:
                file.truncate(end)
                raise

    def close(self) -> None:
        """Close both files, which releases the lock. Safe to call again."""
        if self._data is not None:
            self._data.close()
        self._index.close()

    def _next_data_file(self) -> None:
        if self._data is not None:
            self._data.close()
        self._number += 1
        self._data = io.FileIO(self._directory / data_file(self._number), "w")
        self._end = 0


def _write_all(file: io.FileIO, data: memoryview) -> None:
    written = file.write(data) or 0
    while written < data.nbytes:  # a full disk or a signal cuts a write short; so does Linux beyond 2 GiB
        written += file.write(data[written:]) or 0


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
