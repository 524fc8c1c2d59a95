"""The operating system's lock on an open index: held while a writer lives, gone when it dies."""

from __future__ import annotations

import sys
import time

TRIES = 5  # a reader that asks whether a writer lives holds the lock for an instant

if sys.platform == "win32":
    import msvcrt
    import os

    _FAR = 1 << 40  # Windows locks are mandatory; this byte lies beyond any index, so reading stays possible

    def _lock(descriptor: int, exclusive: bool) -> bool:
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, _FAR, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            return True
        except OSError:
            return False
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
else:
    import errno
    import fcntl

    _NO_LOCKS_HERE = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}  # some network file systems

    def _lock(descriptor: int, exclusive: bool) -> bool:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                return True
            raise


def acquire(descriptor: int) -> bool:
    """Take the writer's lock; false when another writer has it. Closing the descriptor releases it."""
    for attempt in range(TRIES):
        if _lock(descriptor, exclusive=True):
            return True
        time.sleep(0.002 * 2**attempt)
    return False


def is_held(descriptor: int) -> bool:
    """Whether a writer holds the lock of the file that a reader has open."""
    return not _lock(descriptor, exclusive=False)
