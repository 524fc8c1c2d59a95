"""What numbers alone prove of two outlines, whatever its order; and what they speak against.

One tensor may be what several runs return: views, dropout in evaluation, what a container hands on. Those are told
apart only by what they are, and all that is not needed is left for others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .likeness import NEVER, PROVEN, Bits, Likeness
from .sequences import mutual

SURE = 3.0  # bits by which every other counterpart has to be worse


def anchored(likeness: Likeness, scores: Bits) -> dict[int, int]:
    """Runs whose numbers tell their counterpart."""
    groups = likeness.reference.groups, likeness.candidate.groups
    proof = np.where(likeness.possible, likeness.values + likeness.weights, 0.0)
    proof[proof < PROVEN] = 0.0
    found: dict[int, int] = {}
    for aligned in mutual(proof, groups):
        if aligned.margin >= SURE:
            rows = np.nonzero(groups[0] == groups[0][aligned.reference])[0]
            columns = np.nonzero(groups[1] == groups[1][aligned.candidate])[0]
            likest = np.where(proof[np.ix_(rows, columns)] > 0, scores[np.ix_(rows, columns)], NEVER)
            while likest.size and likest.max() > NEVER:
                i, j = np.unravel_index(likest.argmax(), likest.shape)
                found[int(rows[i])] = int(columns[j])
                likest[i], likest[:, j] = NEVER, NEVER
    return found


def contradicted(likeness: Likeness, pairs: Mapping[int, int]) -> set[tuple[int, int]]:
    """Pairs whose numbers differ although all that is made of them agrees: a mistake would show there."""
    if not likeness.reference.has_graph:
        return set()
    agreeing = {a for a, b in pairs.items() if likeness.values[a, b] >= PROVEN}
    return {
        (a, b)
        for a, b in pairs.items()
        if likeness.values[a, b] == 0.0 and likeness.told[a] and likeness.weights[a, b] <= 0
        and (shown := _shown(likeness, a, pairs)) and shown <= agreeing
    }  # fmt: skip


def _shown(likeness: Likeness, start: int, pairs: Mapping[int, int]) -> set[int]:
    """The first runs with a counterpart that what one makes reaches."""
    runs, found = likeness.reference.runs, set[int]()
    waiting, seen = list(runs[start].after), {start}
    while waiting:
        place = waiting.pop()
        if place in pairs:
            found.add(place)
        elif place not in seen:
            seen.add(place)
            waiting.extend(runs[place].after)
    return found


def told_apart(likeness: Likeness, refuted: set[tuple[int, int]]) -> NDArray[np.bool_]:
    """All pairs like the refuted ones: of two kinds of which no numbers ever said that they are one."""
    reference, candidate = likeness.kinds_of
    never = {(reference[a], candidate[b]) for a, b in refuted} - likeness.proven_kinds()
    found = np.zeros(likeness.values.shape, bool)
    for a, b in refuted:
        found[a, b] = True
    for one, other in never:
        found[np.ix_([kind == one for kind in reference], [kind == other for kind in candidate])] = True
    return found & (likeness.values < PROVEN)
