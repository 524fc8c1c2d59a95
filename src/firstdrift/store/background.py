"""A bounded queue in front of a writer: the model goes on while its tensors are written."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

JOB_BYTES = 1024  # what a queued job weighs besides its tensor


class BackgroundQueue:
    """Runs jobs in order on one thread, holding at most `limit` bytes of them.

    A job larger than the limit waits until the queue is empty and then goes alone. The first failure is kept
    and raised to whoever comes next; jobs behind it are dropped, because their order is part of the record.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._jobs: deque[tuple[Callable[[], None], int]] = deque()
        self._held = 0
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="firstdrift-writer", daemon=True)
        self._thread.start()

    def reserve(self, nbytes: int) -> int:
        """Wait for room, and take it. Called before the tensor is copied, so that waiting holds no memory."""
        weight = nbytes + JOB_BYTES
        with self._changed:
            self._changed.wait_for(lambda: self._error or not self._held or self._held + weight <= self._limit)
            self._raise()
            self._held += weight
        return weight

    def submit(self, job: Callable[[], None], weight: int) -> None:
        """Queue a job for which room was reserved."""
        with self._changed:
            self._jobs.append((job, weight))
            self._changed.notify_all()

    def release(self, weight: int) -> None:
        """Give back room that was reserved and not used."""
        with self._changed:
            self._held -= weight
            self._changed.notify_all()

    def close(self) -> None:
        """Finish what is queued, stop the thread, raise what went wrong."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or (self._closed and not self._held))
                if not self._jobs:
                    return
                job, weight = self._jobs.popleft()
            try:
                if self._error is None:
                    job()
            except BaseException as error:  # kept for the thread that put the tensor
                self._error = error
            del job  # or its tensor would be held while waiting for the next one
            self.release(weight)
