"""Why a call cannot be made again."""

from __future__ import annotations

from ...errors import FirstdriftError


class NotReplayableError(FirstdriftError, RuntimeError):
    """A call cannot be made again; the message says why."""
