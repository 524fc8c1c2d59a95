"""Processes that are waited for and can be killed with everything they started."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

TAIL = 4096  # bytes of a log that may hold its last words
_running: set[int] = set()  # process groups of what this process is waiting for


@contextlib.contextmanager
def killable(pid: int | None, timeout: float | None, alone: Callable[[], None]) -> Iterator[threading.Event]:
    """While the block waits for a process, its group is killed when time is up or when the waiting ends badly."""
    assert pid is not None
    late = threading.Event()

    def too_late() -> None:
        late.set()
        kill_group(pid, alone)

    timer = None if timeout is None else threading.Timer(timeout, too_late)
    if timer is not None:
        timer.daemon = True
        timer.start()
    _running.add(pid)
    try:
        yield late
    except BaseException:
        kill_group(pid, alone)
        raise
    finally:
        _running.discard(pid)
        if timer is not None:
            timer.cancel()


def kill_group(pid: int | None, alone: Callable[[], None]) -> None:
    """Kill a process and all that it started; `alone` kills it where it has no group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if pid is not None and hasattr(os, "killpg"):
            os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
        alone()  # a child that has no group of its own yet, and systems without groups


def leave_when_told() -> None:
    """In a worker: a signal to end ends what it waits for too."""

    def leave(number: int, frame: object) -> None:
        for group in tuple(_running):
            kill_group(group, lambda: None)
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def last_words(log: Path) -> str:
    """The last line of a log, as the end of a sentence."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL))
        lines = file.read().decode("utf-8", "replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f": {said[:200]}" if said else " and said nothing"
    return ""
