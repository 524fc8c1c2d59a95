"""The exceptions of firstdrift. Each one also inherits the builtin a caller would expect.

    FirstdriftError
    ├── FormatError       (ValueError)       a file is damaged, or not what it claims to be
    │   └── VersionError                     written by a newer major version of the format
    ├── NotATraceError    (ValueError)       nothing at this path is in a format we know
    ├── SiteError         (ValueError)       a name, phase, number or duplicate that no trace may hold
    │   └── StageError                       a stage name, list or range that cannot be understood
    ├── SelectionError    (LookupError)      a name or pattern that matches nothing
    ├── CaptureError      (RuntimeError)     a running model cannot be recorded as asked
    ├── WeightsError      (ValueError)       weights that do not fit the model they are meant for
    ├── TraceExistsError  (FileExistsError)  something is there already and overwriting was not asked for
    ├── TraceInUseError   (OSError)          another writer holds the trace
    └── StorageError      (OSError)          the disk, the permissions or the file system said no
        └── NotFoundError (FileNotFoundError)  there is nothing at this path

A message is one sentence: the place, both values, the next step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from os import PathLike
from pathlib import Path


def printable(text: str) -> str:
    """A text of several lines for people: what a terminal would act on is escaped, line feeds are not."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class FirstdriftError(Exception):
    """Base of every error that firstdrift raises on purpose."""

    def __str__(self) -> str:
        """One line: names of files are in it, it may end on a terminal, and no name may end the sentence there."""
        return printable(super().__str__()).replace("\n", "\\n")


class FormatError(FirstdriftError, ValueError):
    """A file is damaged, or not what it claims to be."""


class VersionError(FormatError):
    """A file has a newer major version of the format."""


class NotATraceError(FirstdriftError, ValueError):
    """No known format is at this path."""


class SiteError(FirstdriftError, ValueError):
    """A name, phase, number or duplicate that a trace cannot hold."""


class StageError(SiteError):
    """A stage name, list or range is invalid."""


class SelectionError(FirstdriftError, LookupError):
    """A name or pattern matches nothing."""


class CaptureError(FirstdriftError, RuntimeError):
    """A running model cannot be recorded as asked."""


class WeightsError(FirstdriftError, ValueError):
    """Weights do not fit the model; `problems` lists why, `suggested_map` is a map to consider, as YAML, or None."""

    def __init__(self, message: str, problems: tuple[str, ...] = (), suggested_map: str | None = None) -> None:
        super().__init__(message)
        self.problems = problems
        self.suggested_map = suggested_map

    def __str__(self) -> str:
        return printable(Exception.__str__(self))  # its lines are ours, and names in them are escaped


class CaptureWarning(UserWarning):
    """Something about a running model is not in its trace."""


class TraceExistsError(FirstdriftError, FileExistsError):
    """The target exists and overwriting was not requested."""


class TraceInUseError(FirstdriftError, OSError):
    """Another writer holds the trace."""


class StorageError(FirstdriftError, OSError):
    """The disk, permissions or the file system refused."""


class NotFoundError(StorageError, FileNotFoundError):
    """The path does not exist."""


@contextmanager
def storage(path: str | PathLike[str], action: str, next_step: str) -> Iterator[None]:
    """Turn the operating system's refusal about `path` into one sentence of ours."""
    try:
        yield
    except FirstdriftError:
        raise
    except OSError as error:
        where = error.filename or path
        kind = NotFoundError if isinstance(error, FileNotFoundError) else StorageError
        refusal = kind(f"{where}: cannot {action} ({error.strerror or error}); {next_step}")
        refusal.errno = error.errno
        raise refusal from error
    except ValueError as error:
        if "null" not in str(error):
            raise
        raise StorageError(f"{os.fspath(path)!r}: cannot {action} (a path has no NUL byte); {next_step}") from error


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Put the place in front of an error of ours that was raised where the place is not known."""
    try:
        yield
    except FirstdriftError as error:
        raise type(error)(f"{place}: {error}") from None


def without_raising(recognise: Callable[[Path], bool]) -> Callable[[Path], bool]:
    """A path that the system will not let us look at is not recognised; whoever reads it hears why."""

    @wraps(recognise)
    def quiet(path: Path) -> bool:
        try:
            return recognise(path)
        except (OSError, ValueError):  # no permission, a name too long, a NUL in it
            return False

    return quiet
