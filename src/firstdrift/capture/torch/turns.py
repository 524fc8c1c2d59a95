"""Which thread is recorded: one at a time, and the one that opened the block before all others.

A call of the model takes the turn unless a recorded call or backward pass is still running in another thread, so that
threads that wait for each other are recorded as if they were one. Once the thread that opened the block has called the
model, the turn is its own: what others do at the same time cannot decide which of its calls are seen.
"""

from __future__ import annotations

import threading
import weakref

import torch

from .names import outermost

BACKWARD, STEPS = "backward passes", "optimizer steps"
_MOST_NAMES = 8


class _Thread:
    """Stands for a thread; unlike its number it is not given to another one later."""

    __slots__ = ("__weakref__", "is_users")

    def __init__(self) -> None:
        self.is_users = False  # whether the user's code began something here; in autograd's threads it never does


_local = threading.local()


def this_thread() -> _Thread:
    """What stands for the thread that runs."""
    try:
        found: _Thread = _local.thread
    except AttributeError:
        found = _local.thread = _Thread()
    return found


def in_backward() -> bool:
    """Whether autograd is running: a forward that runs now is a recomputation."""
    return torch._C._current_graph_task_id() != -1


class Turn:
    """The turn of one trace."""

    def __init__(self) -> None:
        self.open = True
        self.lent = False  # to the threads of autograd, while a recorded backward pass runs
        self._opener = this_thread()
        self._holder = weakref.ref(self._opener)  # dead once its thread has ended
        self._settled = False  # on the opener, which has called the model
        self._running = 0  # recorded calls and backward passes that have not ended
        self._lock = threading.Lock()  # never held while anything else runs
        self._missed: dict[str, None] = {}

    def is_mine(self) -> bool:
        """Whether this thread has the turn, or works for the one that has it."""
        me = this_thread()
        return self.open and (self._holder() is me or (self.lent and not me.is_users and in_backward()))

    def is_free(self) -> bool:
        """Whether this thread has the turn or could take it."""
        allowed = not self._settled or this_thread() is self._opener
        return self.is_mine() or (self.open and allowed and self.is_idle())

    def is_idle(self) -> bool:
        """Whether nothing that another thread began is still running."""
        return self._running == 0 or self._holder() in (None, this_thread())

    def join(self) -> bool:
        """Begin something if this thread has the turn; whatever is begun must `end`."""
        with self._lock:
            mine = self.is_mine()
            self._running += mine
            return mine

    def take(self, *, for_good: bool) -> bool:
        """Begin something and have the turn while it runs, if it can be had; `for_good` if that is the opener."""
        with self._lock:
            free = self.is_free()
            self._settled |= for_good and this_thread() is self._opener
            if free:
                if self._holder() is None:  # it may have ended in the middle of something
                    self._running = 0
                self._holder = weakref.ref(this_thread())
                self._running += 1
            return free

    def end(self) -> None:
        """End what was begun."""
        with self._lock:
            self._running -= 1
            if self._running == 0 and self._settled:
                self._holder = weakref.ref(self._opener)

    def miss(self, what: str) -> None:
        """Remember what was called in a thread that did not have the turn."""
        self._missed[what] = None

    def said(self) -> str | None:
        """What was missed, as a sentence for the header."""
        missed = list(self._missed)
        modules = outermost(sorted(name for name in missed if name not in (BACKWARD, STEPS)))
        names = [name or "the model" for name in modules] + [name for name in (BACKWARD, STEPS) if name in missed]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        listed = ", ".join(names[:_MOST_NAMES]) + more
        return f"called in other threads too, where nothing is recorded: {listed}" if names else None
