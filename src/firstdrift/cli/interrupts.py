"""Ctrl-C in the program: remembered when it comes, and told in one line, whatever a library makes of it."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

LINE = "firstdrift: interrupted"
EXIT_CODE = 2  # could not tell; 1 would be a drift

_heard = False


def listen() -> None:
    """Remember interruptions from now on: while they import, C extensions turn them into errors of their own."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # whoever ignores it goes on ignoring it
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _unraisable


def heard() -> bool:
    """Whether there was an interruption."""
    return _heard


def ignore_more() -> None:
    """Once it is told, one more would only interrupt the way out, with a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end() -> NoReturn:
    """Say so and leave, without anything that may not be imported yet."""
    ignore_more()
    os.write(2, f"{LINE}\n".encode())
    sys.exit(EXIT_CODE)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    global _heard
    _heard = True
    raise KeyboardInterrupt


def _unraisable(said: Any) -> None:
    if not isinstance(said.exc_value, KeyboardInterrupt):  # Python would print a traceback of its own
        sys.__unraisablehook__(said)
