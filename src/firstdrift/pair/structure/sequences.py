"""Two sequences aligned: which of the reference stands for which of the candidate, in order, and how sure that is.

Of all alignments that keep the order the one with the largest sum of scores is taken. How sure a pair is follows from
the best alignment without it: if that is as good, nothing tells the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Groups = tuple[NDArray[np.int64], NDArray[np.int64]]  # of either side: which things are one


class Aligned(NamedTuple):
    """A pair of places, and by how much the best alignment that gives either of them to another is worse."""

    reference: int
    candidate: int
    margin: float


def align_sequences(scores: Scores, groups: Groups | None = None) -> list[Aligned]:
    """The best alignment in order. A score of 0 or less is no pair."""
    if not scores.size:
        return []
    scores = np.maximum(scores, 0.0)
    path = _path(scores, _best(scores))
    return [Aligned(i, j, lead) for (i, j), lead in zip(path, margins(scores, path, groups), strict=True)]


def margins(scores: Scores, pairs: Sequence[tuple[int, int]], groups: Groups | None = None) -> list[float]:
    """By how much the best alignment with each pair is better than the best that gives either of the two to another.
    Those of one group are one thing: which of them it is makes no difference."""
    if not pairs:
        return []
    scores = np.maximum(scores, 0.0)
    before, after = _best(scores), _best(scores[::-1, ::-1])[::-1, ::-1]
    through = np.where(scores > 0, before[:-1, :-1] + scores + after[1:, 1:], 0.0)
    return [float(through[i, j] - rival(through, i, j, groups)) for i, j in pairs]


def rival(scores: Scores, i: int, j: int, groups: Groups | None = None) -> float:
    """The best score of either of a pair with another, one of its own group apart."""
    row, column = scores[i], scores[:, j]
    if groups is None:
        return max(_without(row, j), _without(column, i))
    others, more = row[groups[1] != groups[1][j]], column[groups[0] != groups[0][i]]
    return float(max(others.max(initial=0.0), more.max(initial=0.0)))


def _best(scores: Scores) -> Scores:
    """The best sum of any prefix of the reference with any prefix of the candidate."""
    rows, columns = scores.shape
    best = np.zeros((rows + 1, columns + 1))
    for i in range(rows):
        row = best[i + 1]
        np.maximum(best[i, 1:], best[i, :-1] + scores[i], out=row[1:])
        np.maximum.accumulate(row, out=row)
    return best


def _path(scores: Scores, best: Scores) -> list[tuple[int, int]]:
    i, j = scores.shape
    found = []
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            found.append((i, j))
    return found[::-1]


def _without(row: Scores, place: int) -> float:
    return float(max(row[:place].max(initial=0.0), row[place + 1 :].max(initial=0.0)))


def mutual(scores: Scores, groups: Groups | None = None) -> list[Aligned]:
    """Pairs that are each other's best whatever the order, each with its lead over the next best of either side."""
    if not scores.size:
        return []
    best = scores.argmax(1)
    back = scores.argmax(0)
    return [
        Aligned(i, int(j), float(scores[i, j] - rival(scores, i, int(j), groups)))
        for i, j in enumerate(best)
        if back[j] == i and scores[i, j] > 0
    ]
