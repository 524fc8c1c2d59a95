"""Causes in a rotation of queries or keys that can be seen on its own, before and after."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..attention.rotary import Floats, Rotary
from ..evidence import Evidence
from ..hypotheses import DOMINANT, EXACT, LEAST_NOISE, Finding, Hypothesis
from . import positions, rope_positions, rope_tables
from .rope_changes import Change, changes
from .rotations import applied, as_tokens, back, fitted, layouts, phases


def rotated(evidence: Evidence) -> Iterator[Finding]:
    """A tensor of which the reference is a rotation of an input: the same rotation, changed in one thing."""
    if evidence.site.phase != "fwd" or evidence.expected.ndim < 3 or evidence.expected.shape != evidence.found.shape:
        return
    limit = EXACT * max(evidence.noise, LEAST_NOISE)
    for name, given in evidence.inputs.items():
        own = evidence.candidate_inputs.get(name, given)
        if given.shape != evidence.expected.shape or own.shape != given.shape or not given.size:
            continue
        if any(np.iscomplexobj(x) for x in (given, own, evidence.expected, evidence.found)):
            continue
        for axes in layouts(given.ndim):
            before, after, mine, found = (as_tokens(x, axes) for x in (given, evidence.expected, own, evidence.found))
            rotary = fitted(before, after, limit)
            if rotary is not None:
                for change in _explaining(mine, found, rotary, limit):
                    predicted = back(applied(mine, change.rotary), axes, evidence.expected)
                    yield Finding(change.label, change.sentence, predicted, change.free, change.parameters)
                return


def _explaining(before: Floats, found: Floats, rotary: Rotary, limit: float) -> Iterator[Change]:
    """The changes that explain most of what was found, as seen on the head that differs most."""
    off = found - applied(before, rotary)
    if not np.isfinite(off).all():
        return
    sample, head = np.unravel_index(np.argmax((off**2).sum(axis=(1, 3))), (len(off), off.shape[2]))
    small, target = (x[sample : sample + 1, :, head : head + 1] for x in (before, found))
    size = max(float(np.linalg.norm(target)), 1e-300)
    most = max(limit, DOMINANT * float(np.linalg.norm(off[sample, :, head])) / size)
    measured = phases(small, target, len(rotary.frequencies), rotary.pairing)[0]
    for change in changes(rotary, before.shape[-1], measured):
        if change.rotary is not None and change.rotary.channels > before.shape[-1]:
            continue
        if float(np.linalg.norm(applied(small, change.rotary) - target)) <= most * size:
            yield change


HYPOTHESES: tuple[Hypothesis, ...] = (
    rotated,
    *rope_positions.HYPOTHESES,
    *rope_tables.HYPOTHESES,
    *positions.HYPOTHESES,
)
