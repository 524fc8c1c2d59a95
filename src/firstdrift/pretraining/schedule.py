"""The learning rate: a straight line up, then a cosine down."""

from __future__ import annotations

import math

from .settings import Settings


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate of a step, counted from 0; the peak is reached in the last step of the warmup."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    down = max(1, settings.num_steps - 1 - settings.warmup)
    share = min(1.0, (step - settings.warmup) / down)
    return settings.lr_min + (settings.lr - settings.lr_min) * 0.5 * (1 + math.cos(math.pi * share))
