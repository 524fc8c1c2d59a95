"""Sharing out numbered pieces of work among threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise


def share(work: Callable[[int, int], None], count: int, threads: int) -> None:
    """Call `work(first, stop)` for consecutive parts of range(count), each in its own thread, and wait."""
    threads = max(1, min(threads, count))
    cuts = [count * i // threads for i in range(threads + 1)]
    errors: list[BaseException] = []

    def attempt(first: int, stop: int) -> None:
        try:
            work(first, stop)
        except BaseException as error:  # raised again where the result is waited for
            errors.append(error)

    others = [threading.Thread(target=attempt, args=cut) for cut in pairwise(cuts[1:])]
    for thread in others:
        thread.start()
    attempt(cuts[0], cuts[1])
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
