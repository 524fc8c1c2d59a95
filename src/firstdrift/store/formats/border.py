"""What every reader does at its border: errors name the file, and recognising a path never fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

from ...errors import FirstdriftError


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Put the place in front of an error that was raised where the place is not known."""
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
