"""How far a long operation is, for whoever wants to draw it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int], None]
Bar = Callable[[str, int | None], AbstractContextManager[Advance]]  # of what, and how much in all where that is known


@contextmanager
def no_bar(description: str, total: int | None) -> Iterator[Advance]:
    """Draws nothing."""
    yield lambda done: None
