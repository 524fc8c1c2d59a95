"""How a training run fails, after everything that could be checked beforehand was right."""

from __future__ import annotations

from ..errors import FirstdriftError


class TrainingError(FirstdriftError, RuntimeError):
    """A run that was started as asked has failed a check of its own: weak weights, a loss that is not finite."""
