"""Losses that are wrong, and one that is right in another way."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from ..case import LossFunction
from ..networks.handmade import ScaledGradient
from ..networks.network import sequence_loss, wide

IGNORED = 0  # the class that padding has, where a loss ignores one


def summed(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Not divided by the number of tokens."""
    return F.cross_entropy(wide(logits).flatten(0, -2), target.flatten(), reduction="sum")


def times(factor: float) -> LossFunction:
    """Not divided by the number of micro-batches, or divided twice."""
    return lambda logits, target: factor * sequence_loss(logits, target)


def mean_of_rows(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Divided by tokens less rows, as if each row lost one to the shift of labels."""
    rows, tokens = target.shape[0], target.numel()
    return summed(logits, target) / (tokens - rows)


def ignoring(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Padding does not count."""
    return F.cross_entropy(wide(logits).flatten(0, -2), target.flatten(), ignore_index=IGNORED)


def ignoring_but_counting(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Padding has no loss and counts in the divisor all the same."""
    losses = F.cross_entropy(wide(logits).flatten(0, -2), target.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.sum() / target.numel()


def smoothed(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Label smoothing that nobody asked for."""
    return F.cross_entropy(wide(logits).flatten(0, -2), target.flatten(), label_smoothing=0.1)


def tempered(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Softmax taken twice."""
    return F.nll_loss(wide(logits).softmax(-1).log_softmax(-1).flatten(0, -2), target.flatten())


def gradient_times(factor: float) -> LossFunction:
    """The right loss, whose gradient is scaled on its way back."""
    return lambda logits, target: sequence_loss(ScaledGradient.apply(logits, factor), target)


def by_hand(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The same cross-entropy by logsumexp and gather."""
    rows = wide(logits).flatten(0, -2)
    picked = rows.gather(-1, target.flatten()[:, None])[:, 0]
    return (torch.logsumexp(rows, -1) - picked).mean()


def absolute(found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean absolute error in place of the mean square."""
    return (wide(found) - target.to(wide(found).dtype)).abs().mean()
