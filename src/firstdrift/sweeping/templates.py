"""Commands with placeholders (`{start}` is a variable of the cases, `{out}` where the trace goes, `{{` a brace), and
the processes that run them: waited for, and killed with everything they started.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from ..core.strict_json import Json
from ..errors import SelectionError
from .cases import RESERVED, Case

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)(?::([^{}]*))?\}")


def split(command: str, side: str) -> tuple[str, ...]:
    """The words of a command, by the rules of a POSIX shell; no shell runs it."""
    try:
        words = shlex.split(command, posix=os.name != "nt")
    except ValueError as error:
        raise SelectionError(f"--{side} {command!r}: cannot be split into words ({error}); close the quote") from None
    if not words:
        raise SelectionError(f"--{side}: the command is empty; give one, with {{out}} where its trace goes")
    return tuple(words)


def placeholders(words: Sequence[str]) -> set[str]:
    """The names in braces."""
    return {found[1] for word in words for found in _PLACEHOLDER.finditer(word) if found[1]}


def check(words: Sequence[str], variables: Collection[str], side: str) -> None:
    """Refuse a command with a placeholder that no case has, or with nowhere to write to."""
    named = placeholders(words)
    known = ", ".join(f"{{{name}}}" for name in (*variables, RESERVED))
    for name in sorted(named - {*variables, RESERVED}):
        hint = f"use one of {known}, or write {{{{{name}}}}} for a brace that is meant"
        raise SelectionError(f"--{side}: there is no placeholder {{{name}}}; {hint}")
    if RESERVED not in named:
        what = "no placeholder at all" if not named else "no {out}"
        raise SelectionError(f"--{side}: has {what}, so its trace could not be found; write --out {{out}}, or alike")


def check_used(used: set[str], variables: Collection[str]) -> None:
    """Refuse variables that nobody reads: every case would be the same run, or a name is misspelt."""
    for name in variables:
        if name not in used:
            raise SelectionError(f"the cases have {name!r}, which neither side uses; write {{{name}}} where it belongs")


def fill(words: Sequence[str], case: Case, out: Path, side: str) -> list[str]:
    """The command of one case. A value stays within its word, whatever it holds."""
    values = {**case, RESERVED: str(out)}

    def filled(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][0]
        return _formatted(values[found[1]], found[2] or "", side)

    return [_PLACEHOLDER.sub(filled, word) for word in words]


def files_of(words: Sequence[str]) -> dict[str, list[int]]:
    """Size and time of change of every file that a command names: a port that was built again is another one."""
    found = {}
    for word in (shutil.which(words[0]) or words[0], *words[1:]):
        for text in (word, word.partition("=")[2]):
            if text and "{" not in text and Path(text).is_file():
                stat = Path(text).stat()
                found[text] = [stat.st_size, stat.st_mtime_ns]
    return found


def _formatted(value: Json, spec: str, side: str) -> str:
    try:
        return format(value, spec)
    except (ValueError, TypeError) as error:
        raise SelectionError(f"--{side}: the format {spec!r} does not fit {value!r} ({error}); drop it") from None


TAIL = 4096  # bytes of a log that may hold its last words
ORPHANED = 0.5  # seconds between looks whether there is still a parent
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
    elsewhere = [] if pid is None else descendants(pid)  # seen while they still have their parents
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if pid is not None and hasattr(os, "killpg"):
            os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
        alone()  # a child that has no group of its own yet, and systems without groups
    for other in elsewhere:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(other, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have, whatever group they are in: launchers of
    several workers give each a session of its own. Only Linux says so without further ado."""
    children: dict[int, list[int]] = {}
    known = list(Path("/proc").iterdir()) if sys.platform == "linux" else []
    for process in known:
        with contextlib.suppress(OSError, IndexError, ValueError):  # one that has ended meanwhile, or none
            parent = int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(process.name))
    found = list(children.get(pid, ()))
    for number in found:  # grows meanwhile
        found += children.get(number, ())
    return found


def leave_when_told() -> None:
    """In a worker: a signal to end ends what it waits for too, and so does the end of whoever started it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: _leave(number))
    leave_with_parent(lambda: _leave(signal.SIGTERM))


def leave_with_parent(leave: Callable[[], None]) -> None:
    """Leave when the process is an orphan: one that was killed cannot end its children, and a forked one would keep
    what its parent had locked."""
    started_by = multiprocessing.parent_process()  # it may have died since
    parent = os.getppid() if started_by is None else started_by.pid

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHANED)
        leave()

    threading.Thread(target=watch, daemon=True).start()


def _leave(number: int) -> None:
    for group in tuple(_running):
        kill_group(group, lambda: None)
    os._exit(128 + number)


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
