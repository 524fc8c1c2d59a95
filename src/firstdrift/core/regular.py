"""The one door to files that a user names: only regular ones are opened, for pipes hang and devices never end."""

from __future__ import annotations

import os
import stat
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from ..errors import FormatError

_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}  # fmt: skip


def check_regular(path: str | PathLike[str]) -> None:
    """Refuse what is there and is no regular file; what is not there is an OSError, as when opening."""
    kind = stat.S_IFMT(Path(path).stat().st_mode)
    if kind != stat.S_IFREG:
        raise FormatError(f"{os.fspath(path)}: is not a regular file but {_KINDS.get(kind, 'no file')}; name a file")


def open_regular(path: str | PathLike[str]) -> BinaryIO:
    """The file, open to be read as bytes."""
    check_regular(path)  # before, because opening a pipe waits for its writer
    return open(path, "rb")


def read_regular(path: str | PathLike[str], most: int = -1) -> bytes:
    """The bytes of the file, or as many as are asked for."""
    with open_regular(path) as file:
        return file.read(most)
