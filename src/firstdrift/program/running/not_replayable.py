"""Why a call cannot be made again, or would not have been made."""

from __future__ import annotations

from ...errors import FirstdriftError


class NotReplayableError(FirstdriftError, RuntimeError):
    """A call cannot be made again; the message says why."""


class ControlDiffersError(NotReplayableError):
    """From these tensors the run would have read other numbers, or made other shapes: other calls would follow."""
