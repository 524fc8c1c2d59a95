"""Files that are mapped when first read, and that must stay as they were when they were opened."""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, storage

Bytes = NDArray[np.uint8]


class MappedFile:
    """One open file: everything about it is read through the same descriptor, so that a rename cannot mix two."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with storage(path, "read the checkpoint", "check that it exists and that you may read it"):
            if not path.is_file():  # a pipe would hang
                path.stat()
                raise FormatError(f"{path}: is not a regular file; name a checkpoint")
            self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._close = weakref.finalize(self, os.close, self._descriptor)  # when nobody holds it any longer
        self._stamp = self._now()
        self._map: Bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of the file when it was opened."""
        return self._stamp[0]

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes copied out of the file; never more than there are."""
        left = min(nbytes, max(0, self.size - offset))
        parts = []
        with storage(self.path, "read the checkpoint", "check the disk"):
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
        if self._map is None:
            mapped = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ) if self.size else b""
            self._map = np.frombuffer(mapped, np.uint8)
        return self._map[offset : offset + nbytes]

    def check_unchanged(self) -> None:
        """Refuse to go on with a file that was written to after it was opened."""
        if not self._close.alive:
            raise FormatError(f"{self.path}: the checkpoint was closed; open it again")
        if self._now() != self._stamp:
            raise FormatError(
                f"{self.path}: had {self.size} bytes when it was opened and was changed since (it has "
                f"{self._now()[0]}); wait until it is written, then open it again"
            )

    def is_open_as(self, descriptor: int) -> bool:
        """Whether another descriptor is of the same file."""
        return os.path.samestat(os.fstat(descriptor), os.fstat(self._descriptor))

    def close(self) -> None:
        """Let go of the descriptor; arrays that are still held keep their mapping."""
        self._close()
        self._map = None

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns
