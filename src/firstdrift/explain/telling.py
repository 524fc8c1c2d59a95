"""The smallest change as a cause: with its sentence, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log10

import numpy as np

from ..judge.measure.result import Cause
from .evidence import Evidence
from .labels import LABELS
from .naming import CHANGED, phase_label
from .one_program.agreement import ALONE, distance
from .one_program.around import Change
from .one_program.refuting import STEPS
from .one_program.trying import Answer, Tried
from .one_program.values import line_of
from .step_names import named
from .two_programs.lined import Lined

FITTED = 20.0  # bits, that a number takes that was fitted
UNNAMED = 6.0  # bits, that a change without a name of its own takes more
TELLING = 16  # elements that differ, from which on a change is told from chance
LONG = 10.0  # bits, from which on a change without a name is less sure
SURE, LIKELY, ONE_OF_SOME = 0.97, 0.7, 0.5


def cause_of(answer: Answer, evidence: Evidence) -> Cause:
    """The cause that an answer is."""
    sentence = answer.sentence
    if answer.rivals:
        sentence += f" (it may as well be called {' or '.join(answer.rivals[:2])})"
    label = phase_label(answer.label, evidence.site.phase)
    rival = answer.rivals[0] if answer.rivals else None
    confidence, confirm = _confidence(answer, evidence), LABELS[label].confirm
    return Cause(label, sentence, confidence, confirm, answer.parameters, rival)


def _confidence(answer: Answer, evidence: Evidence) -> float:
    """How sure a change is: less where others do as well, where few elements tell, where little stands out of noise,
    and where no other tensor bears out a number that was fitted, or a step that was looked at once."""
    if answer.rivals:
        return ONE_OF_SOME
    expected, found = evidence.expected, evidence.found
    differing = int(np.count_nonzero(expected != found))
    whole = distance(expected, found)
    over = log10(whole / max(answer.left, evidence.noise, 1e-15)) if 0 < whole < float("inf") else 3.0
    few = differing < TELLING * (1 + answer.free)
    if answer.label == CHANGED and answer.bits > LONG:
        return LIKELY
    if few or (over < 1.5 and not answer.both):
        return LIKELY
    fits = answer.free > 0 or (evidence.site.phase in STEPS and not answer.both)
    return ALONE if fits and not answer.held else SURE


def told_of(found: Sequence[Tried], lined: Lined | None = None) -> Answer:
    """The change of fewest bits; others of other names that take as many are its rivals."""
    found = [replace(tried, change=named(tried.change, tried.rerun)) for tried in found]
    ranked = sorted(
        found, key=lambda one: (_bits(one.change), -LABELS[one.change.label].specificity, len(one.change.edit))
    )
    best = ranked[0]
    change, rerun = best.change, best.rerun
    as_small = [tried for tried in ranked[1:] if _bits(tried.change) <= _bits(change)]
    rivals = tuple(dict.fromkeys(tried.change.label for tried in as_small if tried.change.label != change.label))
    numbers = [change.at] if change.at is not None else sorted(change.edit, key=rerun.order.index)
    places = [line_of(rerun, number) for number in numbers if number in rerun.order]
    place = next((name for name in places if name), None)
    sentence = f"{place}: {change.said}" if place else change.said
    if lined is not None and change.candidate is not None:
        other = line_of(lined.candidate, change.candidate)
        sentence += f"; the candidate's line is {other}" if other and other != place else ""
    return Answer(
        change.label,
        sentence,
        dict(change.parameters or {}),
        best.predicted,
        best.left,
        change.bits,
        change.free,
        rivals,
        held=best.held,
    )


def _bits(change: Change) -> float:
    """What it takes to say a change: one that has a name is one of few."""
    return change.bits + FITTED * change.free + UNNAMED * (change.label == CHANGED) + max(0, len(change.edit) - 1)


def length(found: Answer) -> float:
    """What it takes to say an answer, its fitted numbers and a missing name included."""
    return found.bits + FITTED * found.free + UNNAMED * (found.label == CHANGED)
