"""Files that are mapped when first read, and that must stay as they were when they were opened.

A map of a file that is cut off meanwhile would end the process. Where our guard was compiled, what is lost reads as NaN
instead, and `check_unchanged` says so afterwards; where it was not, bytes are read into memory of our own.
"""

from __future__ import annotations

import mmap
import os
import weakref
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, storage
from .regular import check_regular
from .scratch import scratch

guard: ModuleType | None
try:
    guard = import_module("firstdrift._guard")
except ImportError:  # not compiled here
    guard = None

Bytes = NDArray[np.uint8]
Stamp = tuple[int, int]  # bytes, and when they were written last, in nanoseconds
PIECE = 16 << 20  # bytes read at a time


class MappedFile:
    """One open file: everything about it is read through the same descriptor, so that a rename cannot mix two.

    `stamp` is what the file was when whoever asks first looked at it. A file that still `grows` may become longer.
    """

    def __init__(self, path: Path, stamp: Stamp | None = None, *, grows: bool = False) -> None:
        self.path = path
        with storage(path, "read it", "check that it still exists and that you may read it"):
            check_regular(path)
            self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._close = weakref.finalize(self, os.close, self._descriptor)  # when nobody holds it any longer
        self._stamp = stamp_of(os.fstat(self._descriptor)) if stamp is None or grows else stamp
        self._grows = grows
        self._map: Bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of the file when it was opened."""
        return self._stamp[0]

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes copied out of the file; never more than there are."""
        left = min(nbytes, max(0, self.size - offset))
        parts = []
        with storage(self.path, "read it", "check the disk"):
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            while left and (part := os.read(self._descriptor, left)):
                parts.append(part)
                left -= len(part)
        return b"".join(parts)

    def view(self, offset: int, nbytes: int) -> Bytes:
        """Bytes of the file, mapped and read-only."""
        self.check_unchanged()
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise FormatError(
                f"{self.path}: bytes {offset} to {offset + nbytes} are asked for but it has {self.size}; fetch it again"
            )
        if self._map is None and self.size:
            self._map = self._mapped()
        return self.copy(offset, nbytes) if self._map is None else self._map[offset : offset + nbytes]

    def copy(self, offset: int, nbytes: int) -> Bytes:
        """Bytes of the file in memory of our own, which nobody can change."""
        copied: Bytes = scratch((nbytes,), np.dtype(np.uint8))  # type: ignore[assignment]
        for start in range(0, nbytes, PIECE):
            part = self.read(offset + start, min(PIECE, nbytes - start))
            if len(part) < min(PIECE, nbytes - start):
                self.check_unchanged()
                raise FormatError(f"{self.path}: ends at byte {offset + start + len(part)}; it is being written, wait")
            copied[start : start + len(part)] = np.frombuffer(part, np.uint8)
        self.check_unchanged()
        copied.flags.writeable = False
        return copied

    def watch(self, address: int, nbytes: int) -> None:
        """Guard a map of this file that somebody else has made, until the file is closed."""
        if guard is not None and nbytes:
            weakref.finalize(self, guard.forget, guard.watch(address, nbytes)).atexit = False

    def check_unchanged(self) -> None:
        """Refuse to go on with a file that was written to after it was opened."""
        if not self._close.alive:
            raise FormatError(f"{self.path}: the file was closed; open it again")
        check_stamp(self.path, self._stamp, stamp_of(os.fstat(self._descriptor)), grows=self._grows)

    def is_open_as(self, descriptor: int) -> bool:
        """Whether another descriptor is of the same file."""
        return os.path.samestat(os.fstat(descriptor), os.fstat(self._descriptor))

    def close(self) -> None:
        """Let go of the descriptor; arrays that are still held keep their mapping."""
        self._close()
        self._map = None

    def _mapped(self) -> Bytes | None:
        """The whole file, or None where nothing would save us from its being cut off."""
        if guard is None and os.name != "nt":
            return None
        try:
            mapped = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
        except ValueError:  # shorter than a moment ago
            self.check_unchanged()
            raise
        found: Bytes = np.frombuffer(mapped, np.uint8)
        if guard is not None:
            slot = guard.watch(found.ctypes.data, self.size)
            if slot < 0:
                return None
            weakref.finalize(mapped, guard.forget, slot).atexit = False  # arrays keep the map, and it keeps its guard
        return found


def stamp_of(status: os.stat_result) -> Stamp:
    """What tells a file from the same one written to."""
    return status.st_size, status.st_mtime_ns


def check_stamp(path: Path, then: Stamp, now: Stamp, *, grows: bool = False) -> None:
    """Refuse a file that is no longer what it was."""
    if now == then or (grows and now[0] >= then[0]):
        return
    was, has = f"{then[0]} bytes", f"{now[0]}"
    if now[0] == then[0]:
        was, has = f"bytes of {_when(then)}", f"bytes of {_when(now)}"
    raise FormatError(
        f"{path}: had {was} when it was opened and was changed since (it has {has}); wait until it is written, then "
        "open it again"
    )


def _when(stamp: Stamp) -> str:
    return datetime.fromtimestamp(stamp[1] / 1e9).isoformat(" ", "microseconds")
