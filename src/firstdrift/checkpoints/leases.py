"""Read leases: while one is held, whoever wants to write to the file, or to cut it off, has to wait.

Linux gives one to the owner of a file that nobody has open for writing. Where none can be had, nothing keeps a file
from changing between two looks at it, and what was read has to be kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ..mapped import MappedFile

try:
    import fcntl
except ImportError:  # Windows
    AVAILABLE = False
else:
    AVAILABLE = hasattr(fcntl, "F_SETLEASE")


@contextmanager
def leased(files: Sequence[MappedFile]) -> Iterator[list[int] | None]:
    """Leases on all of the files until the end of the block; None when one of them cannot be had."""
    descriptors: list[int] = []
    try:
        yield descriptors if all(_take(file, descriptors) for file in files) else None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)  # which ends the lease


def undisturbed(leases: Sequence[int]) -> bool:
    """Whether nobody waits to write. Who does is let in after a while (/proc/sys/fs/lease-break-time, 45 s)."""
    return all(fcntl.fcntl(descriptor, fcntl.F_GETLEASE) == fcntl.F_RDLCK for descriptor in leases)


def _take(file: MappedFile, descriptors: list[int]) -> bool:
    """Lease a file by a descriptor of its own, so that two loads of one checkpoint do not end each other's."""
    if not AVAILABLE:
        return False
    with suppress(OSError):
        descriptors.append(os.open(file.path, os.O_RDONLY))
        if not file.is_open_as(descriptors[-1]):  # another file has its name by now
            return False
        fcntl.fcntl(descriptors[-1], fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptors[-1], fcntl.F_SETOWN, 0)  # or a signal would tell of a writer, and end the process
        return True
    return False
