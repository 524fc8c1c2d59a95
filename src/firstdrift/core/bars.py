"""How far a long operation is, for whoever wants to draw it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int], None]
Bar = Callable[[str, int | None], AbstractContextManager[Advance]]  # of what, and how much in all where that is known


def within(advance: Advance, total: int | None) -> Advance:
    """The same, that never comes to more than there is: what is read twice, or grows while it is read, is no more."""
    done = 0

    def bounded(count: int) -> None:
        nonlocal done
        more = count if total is None else max(0, min(count, total - done))
        done += more
        advance(more)

    return bounded


@contextmanager
def no_bar(description: str, total: int | None) -> Iterator[Advance]:
    """Draws nothing."""
    yield lambda done: None
