"""One side of a case: a command or a function that leaves a trace, in a process of its own that can be killed."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.traces import Trace
from ..errors import CaptureError, SelectionError
from . import templates
from .cases import ONE_VALUE, RESERVED, Case
from .ledger import identity_of
from .templates import ending, kill_group, killable, last_words, leave_with_parent

POLL = 0.2  # seconds between looks whether a process that says nothing is still there
LINGER = 2.0  # seconds that a process may stay after its function has returned, for threads that nobody ended


@dataclass(frozen=True, slots=True)
class Run:
    """What a side is given: the case, a fresh directory for its trace, a log, and how long it may take."""

    case: Case
    out: Path
    log: Path
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A command with placeholders."""

    text: str
    side: str

    @property
    def words(self) -> tuple[str, ...]:
        """The command, split."""
        return templates.split(self.text, self.side)

    def check(self, cases: Collection[Case]) -> set[str]:
        """Refuse placeholders and formats that do not fit the cases; gives the variables that are used."""
        words = self.words
        templates.check(words, list(next(iter(cases))), self.side)
        for case in cases:
            templates.fill(words, case, Path(RESERVED), self.side)
        return templates.placeholders(words)

    def identity(self) -> dict[str, Any]:
        """What a finished case depends on: the command, and the files it names."""
        return {"command": self.text, "files": templates.files_of(self.words)}

    def run(self, run: Run) -> Path:
        """Run it to its end, and give where the trace is."""
        words = templates.fill(self.words, run.case, run.out, self.side)
        with run.log.open("wb") as log:
            try:
                process = subprocess.Popen(  # noqa: S603
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                raise CaptureError(f"the {self.side} {words[0]!r} cannot be run ({why}); check the command") from None
            with process, killable(process.pid, run.timeout, process.kill) as late:
                code = process.wait()
        if late.is_set():
            raise CaptureError(f"the {self.side} was killed after {run.timeout:g} s (--timeout){last_words(run.log)}")
        if code:
            raise CaptureError(f"the {self.side} {ending(code)}{last_words(run.log)}")
        return run.out


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function. It is given the variables of the case, `case` and `out`, whichever of them it names."""

    call: Callable[..., Any]
    side: str
    isolated: bool = True  # in a process of its own; not where somebody else's executor decides

    def check(self, cases: Collection[Case]) -> set[str]:
        """Refuse parameters that no case has; gives the variables that are used."""
        known = {*next(iter(cases)), ONE_VALUE, RESERVED}
        named, takes_all = _parameters(self.call)
        for name, needed in named.items():
            if needed and name not in known:
                has = ", ".join(sorted(known))
                raise SelectionError(f"the {self.side} function needs {name!r}, and a case has {has}; rename it")
        return known if takes_all or ONE_VALUE in named else known & named.keys()

    def identity(self) -> dict[str, Any]:
        """What a finished case depends on, as far as it can be seen: the function and the file it is from."""
        return identity_of(self.call)

    def run(self, run: Run) -> Path:
        """Call it, and give where the trace is."""
        if self.isolated:
            return self._in_a_process(run)
        try:
            return _place(self._called(run), run.out, self.side)
        except Exception as error:
            raise CaptureError(f"the {self.side} raised {type(error).__name__}: {error}") from error

    def _called(self, run: Run) -> Any:
        named, takes_all = _parameters(self.call)
        whole = run.case[ONE_VALUE] if run.case.keys() == {ONE_VALUE} else dict(run.case)
        given = {**run.case, ONE_VALUE: whole, RESERVED: run.out}
        if not takes_all:
            given = {name: value for name, value in given.items() if name in named}
        return self.call(**given)

    def _in_a_process(self, run: Run) -> Path:
        import multiprocessing

        context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(self, run, there))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries, idle now
            process.start()
        there.close()
        with killable(process.pid, None, process.kill) as late:
            end = None if run.timeout is None else time.monotonic() + run.timeout
            # Its own end counts too: what it has started may keep the pipe open for ever.
            while not here.poll(POLL if end is None else min(POLL, max(0.0, end - time.monotonic()))):
                if end is not None and time.monotonic() >= end:
                    late.set()
                if late.is_set() or not process.is_alive():
                    break
            said = _received(here)
        if said is not None:
            process.join(LINGER)
        if process.is_alive() or said is None:
            kill_group(process.pid, process.kill)
        process.join()
        if late.is_set():
            raise CaptureError(f"the {self.side} was killed after {run.timeout:g} s (--timeout){last_words(run.log)}")
        if said is None:
            raise CaptureError(f"the {self.side} {ending(process.exitcode or 0)}{last_words(run.log)}")
        if isinstance(said, str):
            raise CaptureError(said)
        return said


def _child(side: Function, run: Run, answer: Any) -> None:
    """The function's own process: a group of its own, its words in a log, and its answer through a pipe."""
    if hasattr(os, "setsid"):
        os.setsid()
    leave_with_parent(lambda: kill_group(os.getpid(), lambda: os._exit(1)))
    log = os.open(run.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # the threads of a forked process are gone, and OpenMP would wait for them
    try:
        said: Path | str = _place(side._called(run), run.out, side.side)
    except Exception as error:
        said = f"the {side.side} raised {type(error).__name__}: {error}"
    sys.stdout.flush()
    answer.send(said)


def _received(pipe: Any) -> Path | str | None:
    """What a child said; nothing when it died before."""
    try:
        return pipe.recv() if pipe.poll() else None
    except EOFError:
        return None


def _parameters(call: Callable[..., Any]) -> tuple[dict[str, bool], bool]:
    """The names of a function's parameters, whether each must be given, and whether it takes any name."""
    named, takes_all = {}, False
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_all = True
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            named[parameter.name] = parameter.default is parameter.empty
    return named, takes_all


def _place(returned: Any, out: Path, side: str) -> Path:
    """Where the trace is: what a function returned, or where it was asked to write."""
    if returned is None:
        return out
    if isinstance(returned, Trace):
        return returned.path
    if isinstance(returned, str | os.PathLike):
        return Path(returned)
    raise CaptureError(f"the {side} returned a {type(returned).__name__}; return nothing, or the path of the trace")
