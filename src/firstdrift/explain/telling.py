"""The smallest change as a cause: with its sentence, and how sure it is."""

from __future__ import annotations

from math import log10

import numpy as np

from ..compare.result import Cause
from .agreement import distance
from .asked import Answer
from .evidence import Evidence
from .labels import LABELS
from .naming import CHANGED, phase_label

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
    """How sure a change is: less where others do as well, where few elements tell, or little stands out of noise."""
    if answer.rivals:
        return ONE_OF_SOME
    expected, found = evidence.expected, evidence.found
    differing = int(np.count_nonzero(expected != found))
    whole = distance(expected, found)
    over = log10(whole / max(answer.left, evidence.noise, 1e-15)) if 0 < whole < float("inf") else 3.0
    few = differing < TELLING * (1 + answer.free)
    if answer.label == CHANGED and answer.bits > LONG:
        return LIKELY
    return LIKELY if few or (over < 1.5 and not answer.both) else SURE
