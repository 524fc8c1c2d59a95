"""Common losses in float64: what each item costs, and the gradient of their sum at what the loss reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..agreement import Floats

Flags = NDArray[np.bool_]
Classes = NDArray[np.int64]


class Rows:
    """Scores of classes, one row an item, and what every loss needs of them."""

    def __init__(self, logits: Floats) -> None:
        self.logits = logits

    @cached_property
    def log_sum(self) -> Floats:
        """The logarithm of the sum of exponentials, one number a row."""
        top = self.logits.max(1)
        return np.asarray(top + np.log(np.exp(self.logits - top[:, None]).sum(1)), np.float64)

    @cached_property
    def chances(self) -> Floats:
        """The softmax."""
        return np.asarray(np.exp(self.logits - self.log_sum[:, None]), np.float64)


class Scores:
    """Rows of scores, and the class that each item should have."""

    def __init__(self, rows: Rows, classes: Classes, counted: Flags) -> None:
        self.rows, self.counted = rows, counted
        self.classes = np.where(counted, classes, 0)

    @property
    def logits(self) -> Floats:
        """The scores."""
        return self.rows.logits

    @property
    def log_sum(self) -> Floats:
        """The logarithm of the sum of exponentials, one number a row."""
        return self.rows.log_sum

    @property
    def chances(self) -> Floats:
        """The softmax."""
        return self.rows.chances

    @cached_property
    def own(self) -> Floats:
        """The score of each item's class."""
        return self.of_class(self.logits)

    @property
    def own_chance(self) -> Floats:
        """The probability of each item's class."""
        return np.asarray(np.exp(self.own - self.log_sum), np.float64)

    def of_class(self, rows: Floats) -> Floats:
        """From every row the number of its item's class."""
        return np.asarray(np.take_along_axis(rows, self.classes[:, None], 1)[:, 0], np.float64)

    def minus_one(self, rows: Floats, by: float | Floats = 1.0) -> Floats:
        """Rows less something at each item's class."""
        less = rows.copy()
        less[np.arange(len(less)), self.classes] -= by
        return less

    def through_softmax(self, gradient: Floats) -> Floats:
        """The gradient at the scores, of a gradient at their softmax."""
        return np.asarray(self.chances * (gradient - (gradient * self.chances).sum(1, keepdims=True)), np.float64)


@dataclass(frozen=True, slots=True)
class Formula:
    """A loss of scores against classes."""

    name: str
    items: Callable[[Scores], Floats]
    gradient: Callable[[Scores], Floats]


def smoothed(amount: float) -> Formula:
    """Cross entropy with label smoothing."""

    def items(s: Scores) -> Floats:
        return np.asarray(s.log_sum - (1 - amount) * s.own - amount * s.logits.mean(1), np.float64)

    def gradient(s: Scores) -> Floats:
        return s.minus_one(s.chances - amount / s.logits.shape[1], 1 - amount)

    return Formula(f"cross entropy with label smoothing {amount:.4g}", items, gradient)


def with_z_loss(weight: float) -> Formula:
    """Cross entropy and a penalty on the squared log-sum-exp."""
    return Formula(
        f"cross entropy with a z-loss of {weight:.4g}",
        lambda s: s.log_sum - s.own + weight * s.log_sum**2,
        lambda s: s.minus_one(s.chances * (1 + 2 * weight * s.log_sum[:, None])),
    )


def _probabilities_as_scores(s: Scores) -> Scores:
    return Scores(Rows(s.chances), s.classes, s.counted)


def _twice(s: Scores) -> Floats:
    again = _probabilities_as_scores(s)
    return s.through_softmax(again.minus_one(again.chances))


def _focal_gradient(s: Scores) -> Floats:
    p = s.own_chance
    slope = 2 * (1 - p) * np.log(p) - (1 - p) ** 2 / p
    return np.asarray(-s.minus_one(s.chances) * (slope * p)[:, None], np.float64)


CROSS_ENTROPY = Formula("cross entropy", lambda s: s.log_sum - s.own, lambda s: s.minus_one(s.chances))
OF_CLASSES: tuple[Formula, ...] = (
    CROSS_ENTROPY,
    Formula(
        "cross entropy of probabilities taken for logits (softmax twice)",
        lambda s: CROSS_ENTROPY.items(_probabilities_as_scores(s)),
        _twice,
    ),
    Formula(
        "the negative logit of the class (log-softmax missing)",
        lambda s: -s.own,
        lambda s: s.minus_one(np.zeros_like(s.logits)),
    ),
    Formula(
        "the negative probability of the class (logarithm missing)",
        lambda s: -s.own_chance,
        lambda s: s.minus_one(s.chances) * s.own_chance[:, None],
    ),
    Formula(
        "the squared error of the probabilities",
        lambda s: (s.minus_one(s.chances) ** 2).sum(1),
        lambda s: s.through_softmax(2 * s.minus_one(s.chances)),
    ),
    Formula(
        "the squared error of the logits",
        lambda s: (s.minus_one(s.logits) ** 2).sum(1),
        lambda s: 2 * s.minus_one(s.logits),
    ),
    Formula(
        "binary cross entropy of every class",
        lambda s: np.logaddexp(0, s.logits).sum(1) - s.own,
        lambda s: s.minus_one(1 / (1 + np.exp(-s.logits))),
    ),
    Formula("focal loss (gamma 2)", lambda s: (1 - s.own_chance) ** 2 * (s.log_sum - s.own), _focal_gradient),
    *(smoothed(amount) for amount in (0.01, 0.05, 0.1, 0.15, 0.2, 0.3)),
    *(with_z_loss(weight) for weight in (1e-5, 1e-4, 1e-3, 1e-2)),
)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A loss of numbers against numbers."""

    name: str
    items: Callable[[Floats, Floats], Floats]
    gradient: Callable[[Floats, Floats], Floats]


def _log_softmax(z: Floats) -> Floats:
    top = z.max(-1, keepdims=True)
    return np.asarray(z - top - np.log(np.exp(z - top).sum(-1, keepdims=True)), np.float64)


def _xlogx(t: Floats) -> Floats:
    return np.asarray(np.where(t > 0, t * np.log(np.where(t > 0, t, 1)), 0), np.float64)


def _reverse_kl(z: Floats, t: Floats) -> Floats:
    return np.asarray(np.exp(_log_softmax(z)) * (_log_softmax(z) - np.log(t)), np.float64)


def _reverse_kl_gradient(z: Floats, t: Floats) -> Floats:
    terms = _reverse_kl(z, t)
    return np.asarray(terms - np.exp(_log_softmax(z)) * terms.sum(-1, keepdims=True), np.float64)


POINTWISE: tuple[Pointwise, ...] = (
    Pointwise("the squared error", lambda z, t: (z - t) ** 2, lambda z, t: 2 * (z - t)),
    Pointwise("half the squared error", lambda z, t: 0.5 * (z - t) ** 2, lambda z, t: z - t),
    Pointwise("the absolute error", lambda z, t: np.abs(z - t), lambda z, t: np.sign(z - t)),
    Pointwise(
        "the Huber loss (delta 1)",
        lambda z, t: np.where(np.abs(z - t) < 1, 0.5 * (z - t) ** 2, np.abs(z - t) - 0.5),
        lambda z, t: np.clip(z - t, -1, 1),
    ),
    Pointwise("the logarithm of cosh", lambda z, t: np.log(np.cosh(z - t)), lambda z, t: np.tanh(z - t)),
    Pointwise(
        "binary cross entropy of logits",
        lambda z, t: np.logaddexp(0, z) - z * t,
        lambda z, t: 1 / (1 + np.exp(-z)) - t,
    ),
    Pointwise(
        "binary cross entropy of probabilities",
        lambda z, t: -(t * np.log(z) + (1 - t) * np.log1p(-z)),
        lambda z, t: (z - t) / (z * (1 - z)),
    ),
    Pointwise("the divergence of log-probabilities", lambda z, t: _xlogx(t) - t * z, lambda z, t: -t),
    Pointwise(
        "the divergence from the target to the model",
        lambda z, t: _xlogx(t) - t * _log_softmax(z),
        lambda z, t: np.exp(_log_softmax(z)) * t.sum(-1, keepdims=True) - t,
    ),
    Pointwise(
        "cross entropy of soft targets",
        lambda z, t: -t * _log_softmax(z),
        lambda z, t: np.exp(_log_softmax(z)) * t.sum(-1, keepdims=True) - t,
    ),
    Pointwise("the divergence from the model to the target", _reverse_kl, _reverse_kl_gradient),
)
