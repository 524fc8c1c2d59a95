"""How a loss may be read: a formula, what it is divided by, how labels are shifted, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...traces import Array
from ..agreement import Floats, floats
from .loss_formulas import OF_CLASSES, POINTWISE, Classes, Flags, Formula, Pointwise, Rows, Scores

IGNORED = -100  # labels below zero are left out, as in torch
MEAN, SUM, BATCH, POSITIONS = "the mean", "the sum", "the sum over the batch", "the mean over all positions"
LARGE = 1 << 20  # scores, above which the less likely readings are not tried
HEAD = 1 << 17  # scores that tell whether a gradient is worth computing


class Batch:
    """What one side's loss reads: scores and targets, the scores as rows of classes where targets are classes."""

    def __init__(self, logits: Floats, target: Array) -> None:
        self.logits, self.target = logits, target
        self.sums: dict[Reading, float] = {}  # of items, by reading
        self.axis = _class_axis(logits.shape, target.shape) if target.dtype.kind in "iu" else None

    @property
    def of_classes(self) -> bool:
        """Whether targets are numbers of classes."""
        return self.axis is not None

    @property
    def few(self) -> int:
        """How many rows, or leading slices, make a head."""
        width = self.logits.shape[self.axis] if self.axis is not None else self.logits[:1].size
        return max(8, HEAD // max(width, 1))

    @cached_property
    def rows(self) -> Rows:
        """The scores, one row an item."""
        return Rows(self.as_rows(self.logits))

    @cached_property
    def head(self) -> Rows:
        """The first of these rows."""
        return Rows(self.as_rows(self.logits)[: self.few])

    def as_rows(self, array: Floats) -> Floats:
        """Scores or their gradient, one row an item."""
        assert self.axis is not None
        return np.moveaxis(array, self.axis, -1).reshape(-1, array.shape[self.axis])

    def as_logits(self, rows: Floats) -> Floats:
        """Rows in the shape of the scores."""
        assert self.axis is not None
        others = [size for number, size in enumerate(self.logits.shape) if number != self.axis]
        return np.moveaxis(rows.reshape([*others, rows.shape[1]]), -1, self.axis)

    def with_target(self, target: Array) -> Batch:
        """The same scores against other targets."""
        other = Batch(self.logits, target)
        if self.of_classes and other.axis == self.axis:
            other.rows, other.head = self.rows, self.head
        return other


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to take a loss. Labels lie `shift` positions ahead; the class `left_out` does not count."""

    formula: Formula | Pointwise
    reduction: str = MEAN
    shift: int = 0
    left_out: int | None = None

    def value(self, batch: Batch, shape: tuple[int, ...]) -> Floats | None:
        """The loss; one number, or one an item where that is asked for."""
        if int(np.prod(shape)) == 1:
            key = replace(self, reduction=SUM)
            if key not in batch.sums:
                batch.sums[key] = float(self._items(batch).sum())
            return np.asarray(batch.sums[key] / self.divisor(batch), np.float64).reshape(shape)
        items = self._items(batch)
        return items.reshape(shape) if items.size == int(np.prod(shape)) else None

    def _items(self, batch: Batch) -> Floats:
        if isinstance(self.formula, Pointwise):
            return self.formula.items(batch.logits, floats(batch.target))
        scores = self.scores(batch, batch.rows)
        return np.where(scores.counted, self.formula.items(scores), 0.0)

    def gradient(self, batch: Batch) -> Floats:
        """The gradient of the loss at the scores."""
        if isinstance(self.formula, Pointwise):
            return self.formula.gradient(batch.logits, floats(batch.target)) / self.divisor(batch)
        scores = self.scores(batch, batch.rows)
        return self.spread(batch, self.formula.gradient(scores))

    def gradient_head(self, batch: Batch, gradient: Array) -> tuple[Floats, Floats]:
        """The first rows or slices of the gradient of this loss, and of a given one."""
        if isinstance(self.formula, Pointwise):
            made = self.formula.gradient(batch.logits[: batch.few], floats(batch.target[: batch.few]))
            return made / self.divisor(batch), floats(gradient[: batch.few])
        scores = self.scores(batch, batch.head)
        made = np.where(scores.counted[:, None], self.formula.gradient(scores), 0.0) / self.divisor(batch)
        return made, batch.as_rows(floats(gradient))[: batch.few]

    def spread(self, batch: Batch, gradient: Floats) -> Floats:
        """Rows of a gradient, divided and left out as this reading does, in the shape of the scores."""
        counted = self.counted(batch)
        return batch.as_logits(np.where(counted[:, None], gradient, 0.0) / self.divisor(batch))

    def divisor(self, batch: Batch) -> float:
        """What the sum over items is divided by."""
        if self.reduction in (SUM, BATCH):
            return float(batch.logits.shape[0]) if self.reduction == BATCH else 1.0
        if isinstance(self.formula, Pointwise):
            return float(batch.logits.size)
        counted = self.counted(batch)
        return float(counted.sum() if self.reduction == MEAN else counted.size) or 1.0

    def classes(self, batch: Batch) -> Classes:
        """The class of every row."""
        return _shifted(np.asarray(batch.target, np.int64), self.shift).ravel()

    def counted(self, batch: Batch) -> Flags:
        """Whether each row counts."""
        classes = self.classes(batch)
        counted = (classes >= 0) & (classes < batch.rows.logits.shape[1])
        return np.asarray(counted if self.left_out is None else counted & (classes != self.left_out))

    def scores(self, batch: Batch, rows: Rows) -> Scores:
        """Rows with their classes."""
        count = len(rows.logits)
        return Scores(rows, self.classes(batch)[:count], self.counted(batch)[:count])


def readings(batch: Batch) -> Iterator[Reading]:
    """Every reading that fits the shapes, plain ones first."""
    if batch.of_classes:
        for shift in (0, 1) if batch.target.ndim > 1 else (0,):
            pads = _pads(np.asarray(batch.target, np.int64)) if batch.logits.size <= LARGE else ()
            for left_out in (None, *pads):
                for formula in OF_CLASSES:
                    for reduction in (MEAN, SUM, BATCH, POSITIONS):
                        yield Reading(formula, reduction, shift, left_out)
    elif batch.target.shape == batch.logits.shape:
        for pointwise in POINTWISE:
            for reduction in (MEAN, SUM, BATCH):
                yield Reading(pointwise, reduction)


def variants(reading: Reading, told: bool = True) -> Iterator[tuple[str, str, Reading]]:
    """A label, a sentence and a reading for every change of one thing. Labels that nobody told, but the reference's
    gradient, lie where the reference took them: how far ahead that is, is not known."""
    of_classes = isinstance(reading.formula, Formula)
    for other in OF_CLASSES if of_classes else POINTWISE:
        if other is not reading.formula:
            sentence = f"the loss is {other.name} instead of {reading.formula.name}"
            yield "loss-formula", sentence, replace(reading, formula=other)
    for reduction in (MEAN, SUM, BATCH, POSITIONS):
        if reduction != reading.reduction:
            sentence = f"the loss is {reduction} instead of {reading.reduction}"
            yield "reduction-scale", sentence, replace(reading, reduction=reduction)
    if not of_classes:
        return
    for shift in (-1, 0, 1, 2):
        if shift != reading.shift:
            ahead = f"of t{shift:+d} instead of t{reading.shift:+d}"
            whose = ahead if told else f"that the reference compares t{shift:+d} with"
            yield "label-shift", f"position t is compared with the label {whose}", replace(reading, shift=shift)
    for left_out in {None, 0} - {reading.left_out}:
        sentence = f"labels of {reading.left_out} count, which the reference leaves out"
        if left_out is not None:
            sentence = f"labels of {left_out} are left out, which the reference counts"
        yield "loss-formula", sentence, replace(reading, left_out=left_out)


def inferred_target(logits: Floats, gradient: Array) -> Array | None:
    """The classes that a gradient of cross entropy points away from, the last axis being that of classes."""
    rows = floats(gradient)
    if rows.shape != logits.shape or rows.ndim < 2 or rows.shape[-1] < 3 or not np.isfinite(rows).all():
        return None
    negative = (rows < 0).sum(-1)
    used = rows.any(-1)
    if not used.any() or np.any(negative[used] != 1):
        return None
    return np.where(used, rows.argmin(-1), IGNORED)


def inferred_numbers(logits: Floats, gradient: Array) -> Iterator[Array]:
    """The numbers that a gradient of a mean or sum of squares comes from, or one of sigmoids against chances."""
    slopes = floats(gradient)
    if slopes.shape != logits.shape or not slopes.ndim or not np.isfinite(slopes).all():
        return
    for count in dict.fromkeys((slopes.size, len(slopes), 1)):
        yield logits - 0.5 * count * slopes
        yield 1.0 / (1.0 + np.exp(-logits)) - count * slopes


def _class_axis(scores: tuple[int, ...], target: tuple[int, ...]) -> int | None:
    if len(scores) < 2 or not target:
        return None
    if target == scores[:1] + scores[2:] and target != scores[:-1]:
        return 1
    return len(scores) - 1 if int(np.prod(target)) == int(np.prod(scores[:-1])) else None


def _shifted(target: Classes, shift: int) -> Classes:
    """Labels `shift` positions ahead along the last axis; what lies outside is ignored."""
    if not shift:
        return target
    moved = np.full_like(target, IGNORED)
    if shift > 0:
        moved[..., :-shift] = target[..., shift:]
    else:
        moved[..., -shift:] = target[..., :shift]
    return moved


def _pads(target: Classes) -> tuple[int, ...]:
    """Classes that may stand for padding: whatever ends the most rows, and zero."""
    last = target[..., -1].ravel() if target.ndim > 1 else target[:0]
    last = last[last >= 0]
    ends = [int(np.bincount(last).argmax())] if last.size and last.max() < 1 << 20 else []
    return tuple(dict.fromkeys([*ends, 0]))
