"""Sharing out numbered pieces of work among threads."""

from __future__ import annotations

from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue


def share(work: Callable[[int], None], count: int, threads: int) -> None:
    """Call `work` with each number below `count`, from up to `threads` threads, and wait until all is done.

    Whoever is free takes the next piece. So nobody waits for a thread that the system is slow to start: by
    then the caller has done its pieces, and what is waited for is pieces, not threads.
    """
    waiting: SimpleQueue[int] = SimpleQueue()
    finished: SimpleQueue[BaseException | None] = SimpleQueue()
    for piece in range(count):
        waiting.put(piece)

    def take_part() -> None:
        with suppress(Empty):
            while True:
                piece = waiting.get_nowait()
                try:
                    work(piece)
                    finished.put(None)
                except BaseException as error:  # raised again where the result is waited for
                    finished.put(error)

    with suppress(RuntimeError):  # no more threads to be had: those there are do it
        for _ in range(min(threads, count) - 1):
            start_new_thread(take_part, ())
    take_part()
    errors = [error for _ in range(count) if (error := finished.get())]
    if errors:
        raise errors[0]
