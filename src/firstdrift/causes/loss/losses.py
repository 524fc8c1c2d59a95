"""Causes in a loss and its gradient: another divisor, another formula, other labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...traces import Array
from ..agreement import Floats, agree, distance, factor, floats, limit, rounded, snapped, telling
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from . import means_of_means
from .loss_formulas import CROSS_ENTROPY, Formula, Scores
from .loss_readings import Batch, Reading, inferred_numbers, inferred_target, readings, variants
from .scores import gradients_of, whole

UNITS = {2.0: "two", float(np.log(2.0)): "ln 2: the logarithm to another base"}
PROMISING = 0.15  # of the difference: what a reading may leave of it on a few rows to be tried on all
CLOSE = 0.05  # of a difference: a second tensor explained as far as this does not refute


@dataclass(frozen=True, slots=True)
class _Loss:
    """The loss as the reference takes it, what the candidate's read, and the gradients of both."""

    evidence: Evidence
    reading: Reading
    batch: Batch
    ours: Array | None
    theirs: Array | None

    def finding(self, label: str, sentence: str, reading: Reading, batch: Batch, free: int = 0) -> Finding | None:
        """A finding, unless its numbers refute it, or the gradient that was recorded beside the loss."""
        evidence = self.evidence
        if evidence.site.phase == "lossgrad":
            head, wanted = reading.gradient_head(batch, evidence.found)
            before, _ = self.reading.gradient_head(self.batch, evidence.found)
            if float(np.linalg.norm(head - wanted)) > PROMISING * float(np.linalg.norm(before - wanted)) > 0:
                return None
            return Finding(label, sentence, reading.gradient(batch), free)
        value = reading.value(batch, evidence.expected.shape)
        if value is None or not agree(evidence, value, evidence.found) or self._refuted(reading, batch):
            return None
        return Finding(label, sentence, value, free)

    def _refuted(self, reading: Reading, batch: Batch) -> bool:
        """Whether the candidate's gradient is neither the reference's nor that of this loss."""
        if self.ours is None or self.theirs is None or agree(self.evidence, self.ours, self.theirs):
            return False
        allowed = max(limit(self.evidence), CLOSE * distance(self.ours, self.theirs))
        # Gradients may be recorded as those of a sum; then the reference's alone may have been brought to the other's.
        unit, made = factor(self.reading.gradient(self.batch), self.ours), reading.gradient(batch)
        return min(distance(made, self.theirs), distance(unit * made, self.theirs)) > allowed


def loss_scaled(evidence: Evidence) -> Iterator[Finding]:
    """Loss and gradient by one factor: another divisor, whatever the formula."""
    times = factor(evidence.expected, evidence.found) if _is_loss(evidence) else 0.0
    if not np.isfinite(times) or times <= 0:
        return
    menu = _divisors(evidence.inputs["logits"].shape)
    natural = snapped(times, menu, limit(evidence))
    value = natural if natural is not None else rounded(times, limit(evidence))
    if abs(value - 1) <= limit(evidence):
        return
    quantity = "gradient of the loss" if evidence.site.phase == "lossgrad" else "loss"
    sentence = f"the {quantity} is {value:.6g} times what it should be"
    sentence += f": {menu[natural]}" if natural is not None else ""
    if evidence.expected.size > 1:
        predicted = floats(evidence.expected) * value
        if agree(evidence, predicted, evidence.found):  # a factor that explains only most of it is another loss
            label = "reduction-scale"
            if evidence.site.phase == "lossgrad" and _right_loss(evidence) is not None:
                label, sentence = "gradient-scale", f"{sentence}; the loss itself is right"
            yield Finding(label, sentence, predicted, 0 if natural is not None else 1, {"factor": value})
        return
    ours, theirs = _gradients(evidence)
    if ours is not None and theirs is not None and not agree(evidence, ours, theirs):
        left = distance(floats(ours) * value, theirs)
        if left <= max(limit(evidence), CLOSE * distance(ours, theirs)):
            sentence += ", and so is its gradient"
            yield Finding("reduction-scale", sentence, None, 1, {"factor": value}, residual=0.0)
    elif natural is not None and telling(evidence, len(menu)):
        yield Finding("reduction-scale", sentence, floats(evidence.expected) * value, 0, {"factor": value})


def loss_changed(evidence: Evidence) -> Iterator[Finding]:
    """One thing about a loss that is understood: its formula, divisor, shift, what it ignores, its labels."""
    loss = _reproduced(evidence)
    if loss is None:
        return
    tries = list(variants(loss.reading, evidence.around.facts.get("target") is not None))
    alone = loss.theirs is None and evidence.expected.size == 1  # one number, and nothing beside it
    if not alone or telling(evidence, len(tries)):
        for label, sentence, reading in tries:
            found = loss.finding(label, sentence, reading, loss.batch)
            if found is not None:
                yield replace(found, label=_told_apart(loss, label, reading))
        yield from _other_labels(loss)
    if evidence.site.phase == "lossgrad" and loss.batch.of_classes:
        yield from _wrong_gradients(loss)
        yield from _class_weights(loss)


def _other_labels(loss: _Loss) -> Iterator[Finding]:
    """The same loss of other labels: shifted along an axis or in their numbers, or simply others."""
    target = loss.batch.target
    for candidate in _candidate_targets(loss):
        if candidate.shape == target.shape and not np.array_equal(candidate, target):
            moved = _moved(target, candidate)
            label, sentence = moved or ("different-input", "the candidate's loss was given other labels")
            batch = loss.batch.with_target(candidate)
            found = loss.finding(label, sentence, loss.reading, batch, 0 if moved else candidate.size)
            if found is not None:
                yield found
    for by in (1, -1) if loss.batch.of_classes else ():
        classes = np.asarray(target, np.int64)
        count = loss.batch.logits.shape[loss.batch.axis or 0]
        batch = loss.batch.with_target(np.where(classes < 0, classes, (classes + by) % count))
        found = loss.finding("label-shift", f"every label is off by {by:+d}", loss.reading, batch)
        if found is not None:
            yield found


MISTAKEN: dict[str, Callable[[Scores], Floats]] = {
    "the softmax alone, without taking one off at the class": lambda s: s.chances,
    "the logits less one at the class, without their softmax": lambda s: s.minus_one(s.logits),
    "of the opposite sign": lambda s: -s.minus_one(s.chances),
    "multiplied by the derivative of the softmax once more": lambda s: s.through_softmax(s.minus_one(s.chances)),
    "that of the class alone": lambda s: s.minus_one(np.zeros_like(s.logits), 1 - s.own_chance),
}


def _wrong_gradients(loss: _Loss) -> Iterator[Finding]:
    """Gradients of cross entropy as they are often mistaken."""
    for name, gradient in MISTAKEN.items():
        mistaken = replace(loss.reading, formula=Formula(name, CROSS_ENTROPY.items, gradient))
        found = loss.finding("gradient-formula", f"the gradient of the loss is {name}", mistaken, loss.batch)
        if found is not None:
            yield found


def _class_weights(loss: _Loss) -> Iterator[Finding]:
    """Items of a class weighted alike, and classes differently."""
    evidence, batch = loss.evidence, loss.batch
    ours, theirs = batch.as_rows(floats(evidence.expected)), batch.as_rows(floats(evidence.found))
    classes, counted = loss.reading.classes(batch), loss.reading.counted(batch)
    present = np.unique(classes[counted])
    if int(counted.sum()) < 2 * len(present):
        return  # too few rows to tell a class from an item
    if not _parallel(ours[: batch.few], theirs[: batch.few]):
        return
    along, square = (ours * theirs).sum(1), (ours * ours).sum(1)
    place = np.searchsorted(present, classes).clip(0, len(present) - 1)
    with np.errstate(all="ignore"):
        sums = (np.bincount(place[counted], one[counted], len(present)) for one in (along, square))
        weights: Floats = np.divide(*sums)
    predicted = ours * np.where(counted, weights[place], 1.0)[:, None]
    sentence = "every class has a weight of its own in the candidate's loss, or in the reference's"
    shown = {str(one): round(float(w), 6) for one, w in zip(present[:16], weights, strict=False)}
    yield Finding("loss-formula", sentence, batch.as_logits(predicted), len(present), {"weights": shown})


def _parallel(ours: Floats, theirs: Floats) -> bool:
    """Whether rows differ by factors alone, as far as a screen goes."""
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return bool(np.all(np.abs((ours * theirs).sum(1)) >= 0.99 * lengths))


def _reproduced(evidence: Evidence) -> _Loss | None:
    """The loss that makes the reference's numbers, or None where none does: then nothing can be said."""
    if not _is_loss(evidence):
        return None
    ours, theirs = _gradients(evidence)
    logits = floats(evidence.inputs["logits"])
    for target in _targets(evidence, logits, ours):
        batch = Batch(logits, target)
        reading = next((one for one in readings(batch) if _is_right(evidence, one, batch)), None)
        if reading is not None:
            own = Batch(floats(evidence.candidate_inputs["logits"]), batch.target)
            return _Loss(evidence, reading, own, ours, theirs)
    return None


def _targets(evidence: Evidence, logits: Floats, gradient: Array | None) -> Iterator[Array]:
    """What the loss is told to come to: as recorded, else as its gradient shows. Numbers that were read from a gradient
    always give that gradient, so that only the loss itself can confirm them."""
    told = evidence.around.facts.get("target")
    if told is not None:
        yield np.asarray(told)
    elif gradient is not None:
        classes = inferred_target(logits, gradient)
        if classes is not None:
            yield classes
        if evidence.site.phase == "loss":
            yield from inferred_numbers(logits, gradient)


def _is_right(evidence: Evidence, reading: Reading, batch: Batch) -> bool:
    """Whether a way to take the loss makes the reference's numbers."""
    if evidence.site.phase == "lossgrad":
        made, wanted = reading.gradient_head(batch, evidence.expected)
        return agree(evidence, made, wanted) and agree(evidence, reading.gradient(batch), evidence.expected)
    value = reading.value(batch, evidence.expected.shape)
    return value is not None and agree(evidence, value, evidence.expected)


def _is_loss(evidence: Evidence) -> bool:
    return (
        evidence.site.phase in ("loss", "lossgrad")
        and "logits" in evidence.inputs
        and "logits" in evidence.candidate_inputs
        and bool(np.isfinite(evidence.found).all())
    )


def _gradients(evidence: Evidence) -> tuple[Array | None, Array | None]:
    """The gradient at the scores, of both sides."""
    if evidence.site.phase == "lossgrad":
        return evidence.expected, evidence.found
    sites = gradients_of(evidence.site, evidence.around.sites("lossgrad"))
    return whole(sites, evidence.around.reference), whole(sites, evidence.around.candidate)


def _candidate_targets(loss: _Loss) -> Iterator[Array]:
    told = loss.evidence.around.facts.get("candidate_target")
    if told is not None:
        yield np.asarray(told)
    elif loss.theirs is not None and loss.batch.of_classes:
        seen = inferred_target(loss.batch.logits, loss.theirs)
        if seen is not None and seen.size == loss.batch.target.size:
            yield seen.reshape(loss.batch.target.shape)


def _moved(target: Array, candidate: Array) -> tuple[str, str] | None:
    """How one set of labels is the other, shifted along an axis."""
    for shift in (1, -1, 2, -2):
        for axis in range(target.ndim):
            count = target.shape[axis]
            if count <= 2 * abs(shift):
                continue
            here = np.take(candidate, range(max(0, -shift), min(count, count - shift)), axis)
            there = np.take(target, range(max(0, shift), min(count, count + shift)), axis)
            if np.array_equal(here, there):
                return "label-shift", f"the labels are shifted by {shift} along axis {axis}"
    return None


def _told_apart(loss: _Loss, label: str, reading: Reading) -> str:
    """A gradient of another loss, or of another divisor, where the loss itself is right, is a wrong gradient."""
    instead = {"loss-formula": "gradient-formula", "reduction-scale": "gradient-scale"}
    right = _right_loss(loss.evidence) if loss.evidence.site.phase == "lossgrad" and label in instead else None
    value = None if right is None else reading.value(loss.batch, right.shape)
    wrong = value is not None and right is not None and not agree(loss.evidence, value, right)
    return instead[label] if wrong else label


def _right_loss(evidence: Evidence) -> Array | None:
    """The loss whose gradient this is, where it is recorded and both sides agree about it."""
    for site in evidence.around.sites("loss"):
        a, b = evidence.around.reference(site), evidence.around.candidate(site)
        if site.step == evidence.site.step and a is not None and b is not None and agree(evidence, a, b):
            return b
    return None


def _divisors(shape: tuple[int, ...]) -> dict[float, str]:
    """Factors with a reason: numbers of items, by the shape of the scores."""
    counts = {"the batch": shape[0]} if shape else {}
    if len(shape) > 2:
        counts |= {"the sequence": shape[1], "all positions": int(np.prod(shape[:-1]))}
    if shape:
        counts |= {"the last axis": shape[-1], "all numbers": int(np.prod(shape))}
    menu: dict[float, str] = {}
    for name, count in counts.items():
        if count > 1:
            menu.setdefault(float(count), f"not divided by {name} of {count}")
            menu.setdefault(1 / count, f"divided by {name} of {count} once more")
    for value, name in UNITS.items():
        menu.setdefault(value, f"a factor of {name}")
        menu.setdefault(1 / value, f"a divisor of {name}")
    return menu


HYPOTHESES: tuple[Hypothesis, ...] = (loss_scaled, loss_changed, *means_of_means.HYPOTHESES)
