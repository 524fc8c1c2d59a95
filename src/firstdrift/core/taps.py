"""`tap`: any tensor, anywhere inside a forward pass, named for the trace that is open, if one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Listener = Callable[[str, Any], Any]

_listener: Listener | None = None  # None while no trace is open: a tap then costs one comparison


def tap(name: str, tensor: T) -> T:
    """Name a tensor inside a forward pass, and return it unchanged.

        scores = fd.tap("scores", q @ k.transpose(-2, -1))

    An open trace records it as the site `<path of the running module>.<name>`, phase `fwd`; its gradient as `agrad`.
    """
    if _listener is None:
        return tensor
    heard = _listener(name, tensor)
    return tensor if heard is None else heard


def listen(listener: Listener | None) -> Listener | None:
    """Set who hears taps, None for nobody; returns who did before. What a listener returns, if not None, stands for the
    tensor: the same numbers."""
    global _listener
    before, _listener = _listener, listener
    return before
