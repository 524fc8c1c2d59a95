"""The comparison of a case whose traces are there, in a process that can run programs.

A worker that was forked from a process with torch cannot: torch waits for locks and threads that a fork does not copy.
It hands its comparisons to a process of its own, so that several jobs give what one gives.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from ..compare.comparison import diff
from ..compare.open_trace import open_trace
from ..core.traces import unchanged
from ..errors import FirstdriftError
from ..judge.measure.measuring import load_recorded
from ..judge.replay.programs import is_forked_from_torch
from .case_rows import Row, fed_to, row_of
from .cases import Case
from .growth import growth_of
from .templates import leave_when_told

# The path of modules comes first: what is imported after it is found where the parent found it.
SERVE = (
    "import sys; from multiprocessing.connection import Connection; asked = Connection(int(sys.argv[1])); "
    "sys.path[:] = asked.recv(); from firstdrift.sweeping.comparing import serve; serve(asked)"
)
_server: tuple[int, Connection, subprocess.Popen[bytes]] | None = None  # of the process of this number, no fork's


class FailedElsewhereError(RuntimeError):
    """What went wrong in the process that compares, in words."""


def compared(case: Case, found: dict[str, Path], options: dict[str, Any]) -> Row:
    """The row of a case whose traces are there."""
    return _asked(case, found, options) if is_forked_from_torch() else compare(case, found, options)


def compare(case: Case, found: dict[str, Path], options: dict[str, Any]) -> Row:
    """The same, here."""
    order = options.get("order")
    reference, candidate = (open_trace(found[side], order=order) for side in ("reference", "candidate"))
    truth = open_trace(found["truth"], order=order) if "truth" in found else None
    with unchanged(reference, candidate, *([] if truth is None else [truth])):
        result = diff(reference, candidate, truth=truth, **options)
        load = partial(load_recorded, reference=reference, candidate=candidate)
        growth = growth_of(result, load, reference, truth)
        return replace(row_of(case, result, load), growth=growth, fed=fed_to(reference))


def serve(asked: Connection) -> None:
    """Compare what is asked for, until nobody asks any more."""
    leave_when_told()
    with contextlib.suppress(EOFError, OSError):
        while True:
            asked.send(_answer(*asked.recv()))


def _answer(case: Case, found: dict[str, Path], options: dict[str, Any]) -> Row | tuple[bool, str]:
    """A row; or whether it was refused, and why there is none."""
    try:
        return compare(case, found, options)
    except FirstdriftError as error:
        return True, str(error)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


def _asked(case: Case, found: dict[str, Path], options: dict[str, Any]) -> Row:
    connection = _connected()
    try:
        connection.send((case, found, options))
        answer: Row | tuple[bool, str] = connection.recv()
    except (EOFError, OSError):
        os._exit(1)  # what compares has died: this worker is lost with it, and its cases are run again
    if isinstance(answer, Row):
        return answer
    refused, why = answer
    raise FirstdriftError(why) if refused else FailedElsewhereError(why)


def _connected() -> Connection:
    """The process that compares for this one, begun when it is first needed; it ends when this one does."""
    global _server
    if _server is None or _server[0] != os.getpid():
        here, there = Pipe()
        command = [sys.executable, "-c", SERVE, str(there.fileno())]
        process = subprocess.Popen(command, pass_fds=[there.fileno()])  # noqa: S603
        there.close()
        here.send(sys.path)
        Finalize(None, _end, (here, process), exitpriority=10)  # a worker of a pool runs no other code at its end
        _server = os.getpid(), here, process
    return _server[1]


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    """Nobody asks any more: wait for the process that compares, so that it does not outlive the sweep."""
    connection.close()
    process.wait()
