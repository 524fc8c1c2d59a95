"""What a hypothesis is, and how one is chosen among those that explain a drift."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...core.traces import Array
from ...judge.measure.result import Cause
from ..evidence import Evidence
from ..labels import LABELS
from ..one_program.agreement import CHUNK, EXACT, LEAST_NOISE, size_of
from .regions import shape_of_difference
from .screening import LARGE, part_of

HALF = 0.5  # of the difference: what leaves more is no better than no change, however large the noise
DOMINANT = 0.1  # of the difference: a hypothesis that leaves no more than this explains most of it
STORED = 2.0**-22  # two explanations that leave less than this, a few roundings to float32, are equally good
MARGIN = 3.0  # times what the best leaves: a partial explanation is believed where others leave at least this
FEW = 4  # fitted numbers, above which a fit says less

Hypothesis = Callable[[Evidence], "Iterable[Finding]"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause with its parameters fitted, and what it predicts.

    `predicted` is the candidate's tensor if this were the cause. `free` counts the numbers that were fitted to the
    candidate (0 for a missing bias, 1 for a factor, one per channel, one per element moved): fewer is better. A
    finding about more than one tensor gives its own relative `residual` instead of a prediction. One that is true
    by definition, but does not say how the numbers came about, is `general`: it is given where nothing else is. What
    other tensors or steps may yet refute is no surer than `most`.
    """

    label: str
    sentence: str
    predicted: Array | None = None
    free: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    residual: float | None = None
    general: bool = False
    most: float = 1.0


@dataclass(frozen=True, slots=True)
class Tested:
    """A finding and the relative error that it leaves unexplained; `measured` where that was seen on a prediction.

    Predictions are as large as tensors, so only that of the `nearest` finding is kept.
    """

    finding: Finding
    residual: float
    measured: bool = True


@dataclass(slots=True)
class _Trial:
    """The findings about one drift so far."""

    evidence: Evidence
    scale: float
    whole: float  # the relative difference to be explained
    nothing: float  # what a prediction may leave to be better than none: half of what was found
    tested: list[Tested] = field(default_factory=list)
    nearest: Tested | None = None  # with its prediction
    general: Finding | None = None

    @classmethod
    def of(cls, evidence: Evidence) -> _Trial:
        size = size_of(evidence.found)
        scale = max(size_of(evidence.expected), size)
        nothing = 0.5 * size / scale if size > 0 else math.inf
        return cls(evidence, scale, _distance(evidence.found, evidence.expected, scale), nothing)

    @property
    def limit(self) -> float:
        return EXACT * max(self.evidence.noise, LEAST_NOISE)

    def run(self, hypothesis: Hypothesis) -> bool:
        """Whether a hypothesis has something to say that explains all or most of the difference."""
        most = DOMINANT * self.whole if math.isfinite(self.whole) else 0.0
        worth = min(max(self.limit, most), self.nothing, HALF * self.whole)
        some = False
        for finding in _findings(hypothesis, self.evidence):
            if finding.general:
                self.general, some = self.general or finding, True
                continue
            left = self._left(finding, worth)
            if not left <= worth or not _possible(self.evidence, finding):  # NaN explains nothing
                continue
            some = True
            one = Tested(finding, left, finding.predicted is not None)
            few = one.measured and finding.free <= FEW
            if few and (self.nearest is None or left < self.nearest.residual):
                self.nearest = one
            self.tested.append(replace(one, finding=replace(finding, predicted=None)))
        return some

    def _left(self, finding: Finding, stop: float) -> float:
        if finding.predicted is None:
            return math.inf if finding.residual is None else finding.residual
        return _distance(self.evidence.found, finding.predicted, self.scale, stop)

    @property
    def settled(self) -> bool:
        """Whether a specific cause with few numbers explains everything."""
        best = next(iter(_ranked(self)), None)
        return best is not None and best.finding.free <= FEW and _specific(best)


def explain(evidence: Evidence, table: Sequence[Hypothesis]) -> Cause:
    """The cause with the fewest fitted numbers that explains a drift up to noise; else what explains most of it."""
    if np.iscomplexobj(evidence.expected) or np.iscomplexobj(evidence.found):  # of which no hypothesis speaks
        return Cause("unknown", "causes of complex numbers are not known", 0.0, LABELS["unknown"].confirm)
    with np.errstate(all="ignore"):
        return _chosen(_try(evidence, table if evidence.expected.size else ()))


def _chosen(trial: _Trial) -> Cause:
    ranked = _ranked(trial)
    if ranked:
        value = _confidence(trial, ranked) if ranked[0].finding.label != "unknown" else 0.0
        return _cause(trial, ranked, value)
    partial = sorted(trial.tested, key=lambda one: (one.residual, *_preference(one)))
    if partial and _believable(trial, partial):
        return _cause(trial, partial, _strength(trial) / 8)
    return _unknown(trial, partial) if trial.general is None else _in_general(trial, trial.general)


def relative(found: Array, predicted: Array, evidence: Evidence) -> float:
    """The L2 distance of two tensors, relative to the larger of what was expected and found.

    Where both are not finite and alike they agree; where only one is, nothing is explained.
    """
    return _distance(found, predicted, _scale(evidence))


def residual(evidence: Evidence, finding: Finding) -> float:
    """The relative error that a finding leaves."""
    if finding.predicted is None:
        return math.inf if finding.residual is None else finding.residual
    return relative(evidence.found, finding.predicted, evidence)


def _try(evidence: Evidence, table: Sequence[Hypothesis]) -> _Trial:
    """Everything on a small tensor; on a large one, what explains a part of it, and where that is nothing the rest."""
    trial = _Trial.of(evidence)
    part = part_of(evidence) if evidence.expected.size > LARGE else None
    small = None if part is None else _Trial.of(part)
    promising = [one for one in table if small is None or small.run(one)]
    for hypothesis in promising:
        trial.run(hypothesis)
    for hypothesis in (one for one in table if one not in promising):
        if trial.settled:
            break
        trial.run(hypothesis)
    return trial


def _findings(hypothesis: Hypothesis, evidence: Evidence) -> Iterator[Finding]:
    """What a hypothesis finds. One that fails must not take the verdict with it: it says so, and no more."""
    try:
        yield from hypothesis(evidence)
    except Exception as error:
        name = f"{hypothesis.__module__}.{hypothesis.__name__}"
        warnings.warn(f"{name} failed at {evidence.site}: {error!r}; please report it", RuntimeWarning, stacklevel=2)


def _possible(evidence: Evidence, finding: Finding) -> bool:
    """Whether a cause can act there: an input is not computed, so the sides were fed different data."""
    return evidence.site.phase != "input" or finding.label == "different-input"


def _scale(evidence: Evidence) -> float:
    return max(size_of(evidence.expected), size_of(evidence.found))


def _distance(found: Array, predicted: Array, scale: float, stop: float = math.inf) -> float:
    """The relative distance, or infinity as soon as it exceeds `stop`."""
    if found.shape != predicted.shape:
        return math.inf
    total, enough = 0.0, (stop * scale) ** 2
    flat, other = found.reshape(-1), predicted.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        a = np.asarray(flat[start : start + CHUNK], np.float64)
        b = np.asarray(other[start : start + CHUNK], np.float64)
        with np.errstate(all="ignore"):
            error = a - b
            square = float(error @ error)
        if not math.isfinite(square):
            finite = np.isfinite(a) & np.isfinite(b)
            if not (finite | (a == b) | (np.isnan(a) & np.isnan(b))).all():
                return math.inf
            error = error[finite]
            square = float(error @ error)
        total += square
        if total > enough:
            return math.inf
    return math.sqrt(total) / scale if scale > 0 else float(total > 0)


def _ranked(trial: _Trial) -> list[Tested]:
    """What explains everything, best first. What leaves far more than another comes after it, whatever it fitted."""
    fitting = [tested for tested in trial.tested if tested.residual <= trial.limit]
    named = [tested for tested in fitting if tested.finding.label != "unknown"]
    exact = named or fitting  # a tensor recognised without a name for it does not outdo a cause
    least = min((tested.residual for tested in exact if tested.measured), default=math.inf)
    enough = max(EXACT * least, min(trial.evidence.noise, STORED))
    as_good = [tested for tested in exact if not tested.measured or tested.residual <= enough]
    rest = [tested for tested in exact if tested.measured and tested.residual > enough]
    return sorted(as_good, key=_preference) + sorted(rest, key=_preference)


def _preference(tested: Tested) -> tuple[int, int, float]:
    return tested.finding.free, -LABELS[tested.finding.label].specificity, tested.residual


def _specific(tested: Tested) -> bool:
    return LABELS[tested.finding.label].specificity > 0


def _rival(ranked: Sequence[Tested]) -> Tested | None:
    return next((tested for tested in ranked[1:] if tested.finding.label != ranked[0].finding.label), None)


def _strength(trial: _Trial) -> float:
    """How far the difference stands out of the noise, in powers of ten from 0 to 3."""
    over = trial.whole / trial.limit
    return min(max(math.log10(over), 0.0), 3.0) if over > 0 else 0.0


def _confidence(trial: _Trial, ranked: Sequence[Tested]) -> float:
    """From 0 to 1: how far the drift stands out, and that it is explained; less where a rival explains it as well."""
    best, rival = ranked[0], _rival(ranked)
    value = (_strength(trial) + 1) / 4
    if best.finding.free > FEW:
        value *= 0.8
    if rival is not None and _preference(rival)[:2] == _preference(best)[:2]:
        value *= 0.5
    return min(value, best.finding.most)


def _believable(trial: _Trial, partial: Sequence[Tested]) -> bool:
    """Whether the best partial explanation may be given as the cause.

    A specific cause must leave little and its rivals much more. A generic one, which comes near many others, must
    leave next to nothing.
    """
    best, rival = partial[0], _rival(partial)
    if best.finding.free > FEW or (rival is not None and rival.residual < MARGIN * best.residual):
        return False
    return best.residual <= (DOMINANT if _specific(best) else DOMINANT**2) * trial.whole


def _unknown(trial: _Trial, partial: Sequence[Tested]) -> Cause:
    evidence = trial.evidence
    said = "no known cause explains the difference"
    prediction = evidence.expected
    parameters: dict[str, Any] = {}
    if partial and trial.nearest is not None and trial.nearest.finding.predicted is not None:
        nearest = trial.nearest
        left = nearest.residual / trial.whole
        said += f"; nearest comes {nearest.finding.label}, which leaves {left:.1%} of it: {nearest.finding.sentence}"
        parameters = {"nearest": nearest.finding.label, "left": left}
        prediction = trial.nearest.finding.predicted
    where = shape_of_difference(evidence, prediction)
    return Cause(
        "unknown", f"{said}; {where}" if where else said, 0.0, "compare the two implementations there", parameters
    )


def _in_general(trial: _Trial, finding: Finding) -> Cause:
    """What is true by definition, with little confidence, and where the difference lies."""
    where = shape_of_difference(trial.evidence, trial.evidence.expected)
    said = f"{finding.sentence}; {where}" if where else finding.sentence
    return Cause(finding.label, said, _strength(trial) / 12, LABELS[finding.label].confirm, finding.parameters)


def _cause(trial: _Trial, ranked: Sequence[Tested], confidence: float) -> Cause:
    best = ranked[0].finding
    rest = sorted((tested for tested in trial.tested if tested not in ranked), key=lambda one: one.residual)
    rival = _rival([*ranked, *rest])
    return Cause(
        best.label, best.sentence, confidence, LABELS[best.label].confirm, best.parameters,
        None if rival is None else rival.finding.label, None if rival is None else _margin(trial, ranked[0], rival),
    )  # fmt: skip


def _margin(trial: _Trial, best: Tested, rival: Tested) -> float:
    """How many times as much a rival leaves, where what noise leaves counts as left by both."""
    floor = max(trial.evidence.noise, LEAST_NOISE)
    return max(rival.residual, floor) / max(best.residual, floor)
