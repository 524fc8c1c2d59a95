"""Files that appear whole or not at all."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_numbers = itertools.count()  # threads may write the same file at once; the last one stays


@contextmanager
def replacing_path(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the place of `path` when the block ends well."""
    path = (
        Path(os.path.realpath(path)) if path.is_symlink() else path
    )  # what a link points to is replaced, not the link
    partial = path.with_name(f".{path.name[:100]}.{os.getpid()}.{next(_numbers)}.partial")
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
