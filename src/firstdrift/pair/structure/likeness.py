"""How much speaks for two runs being each other's counterpart, in bits: what they compute, hold, return and read.

Nothing here decides. Names count for little, and never where nothing else speaks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import log2, prod

import numpy as np
from numpy.typing import NDArray

from ..moments import apart, bits, in_order
from ..same_weights import SameWeights
from .operations import SAME_FAMILY, operations
from .outline import Outline, Run, dims_of

Bits = NDArray[np.float64]
Pattern = tuple[str, ...]
Kind = tuple[str | None, bool, tuple[str, ...]]
NUMBER = re.compile(r"([0-9]{1,9})")

NEVER = -1e6  # no evidence makes up for it
SAME_DIMS, SAME_SIZE = 2.0, 0.5
WEIGHT = 20.0  # a weight that both hold
OTHER_WEIGHTS = -24.0  # one holds a weight whose counterpart is held by another
NEIGHBOUR, NEXT, MOST_NEIGHBOURS = 4.0, 2.0, 2  # a run that both read, or that reads both; or only stands next to it
CONTENTS, OTHER_CONTENTS = 12.0, -8.0  # containers that hold the same, or nothing in common
MOST_OF_NAMES = 5.0
KIND, OFTEN = 4.0, 2  # runs of one kind whose counterparts numbers tell are all of one kind; how many tell it
ANALOGY = 6.0  # of another layer numbers prove that what is called like this one is called like that one
PROVEN = 14.0  # what numbers say of a pair that they prove


class Likeness:
    """Scores of every run of ours with every one of theirs, in parts that are made once."""

    def __init__(self, ours: Outline, theirs: Outline, weights: SameWeights) -> None:
        self.ours, self.theirs = ours, theirs
        self.possible = _fitting(ours, theirs)
        self.told = np.array([one is not None and not one.is_constant for one in ours.results], bool)
        self.values = self._values()
        self.kinds_of = [_kind(run, ours) for run in ours.runs], [_kind(run, theirs) for run in theirs.runs]
        self.weights = self._held(weights)
        same_holding = _table(ours, theirs, lambda run: run.holds)
        self.kinds = operations(ours, theirs) - np.where(same_holding, 0.0, SAME_FAMILY) + _shapes(ours, theirs)
        self._patterns = [[_pattern(run) for run in side.runs] for side in (ours, theirs)]
        self.names = np.minimum(
            _shared_words(ours.words([run.name for run in ours.runs]), theirs.words([r.name for r in theirs.runs])),
            MOST_OF_NAMES,
        )

    def _values(self) -> Bits:
        fine = max([one.fine for one in (*self.ours.results, *self.theirs.results) if one is not None], default=0.0)
        sides, groups = (self.ours.results, self.theirs.results), (self.ours.groups, self.theirs.groups)
        distance = apart(*sides)
        as_they_lie = np.maximum(distance, in_order(*sides))
        found: Bits = np.maximum(bits(as_they_lie, fine, groups), bits(distance, fine, groups))
        found[~self.told] = 0.0
        return found

    def _held(self, weights: SameWeights) -> Bits:
        found = np.zeros((len(self.ours.runs), len(self.theirs.runs)))
        ours, theirs = _holders(self.ours), _holders(self.theirs)
        left, right = [0.0] * len(self.ours.runs), [0.0] * len(self.theirs.runs)
        for a, b in weights.links():
            holders, others = ours.get(a, ()), theirs.get(b, ())
            for i in holders:
                left[i] = OTHER_WEIGHTS if others else left[i]
                for j in others:
                    found[i, j] += WEIGHT
            for j in others:
                right[j] = OTHER_WEIGHTS if holders else right[j]
        elsewhere = np.minimum(np.array(left)[:, None], np.array(right)[None, :])
        return np.where(found > 0, found, elsewhere)

    def scores(self, pairs: Mapping[int, int], *, names: bool = True) -> Bits:
        """What speaks for each pair, given what is paired already."""
        found = self.values + self.weights + self.kinds + self._around(pairs) + self._inside(pairs)
        found += self._learned(pairs)
        found += self._analogous(pairs) if names else 0.0
        found += np.where(found >= SAME_FAMILY, self.names, 0.0) if names else 0.0
        return np.where(self.possible, found, NEVER)

    def is_proven(self, i: int, j: int) -> bool:
        """Whether numbers tell that two are each other's."""
        return bool(self.values[i, j] >= PROVEN or self.weights[i, j] >= WEIGHT)

    def _learned(self, pairs: Mapping[int, int]) -> Bits:
        """What numbers tell of some runs of a kind counts for the others: a layer and the sum that adds its bias."""
        told: dict[Kind, Counter[Kind]] = {}
        for one, other in self._kinds_told(pairs):
            told.setdefault(one, Counter())[other] += 1
        found = np.zeros(self.values.shape)
        for one, others in told.items():
            if len(others) == 1 and others.total() >= OFTEN:
                alike = np.array([kind in others for kind in self.kinds_of[1]], bool)
                known = np.array([kind[0] is not None for kind in self.kinds_of[1]], bool)
                rows = [i for i, kind in enumerate(self.kinds_of[0]) if kind == one]
                found[rows] = np.where(alike, KIND, np.where(known, -KIND, 0.0))
        return found

    def _kinds_told(self, pairs: Mapping[int, int]) -> Iterator[tuple[Kind, Kind]]:
        ours, theirs = self.kinds_of
        for i, j in pairs.items():
            if self.values[i, j] >= PROVEN and ours[i][0] is not None and theirs[j][0] is not None:
                yield ours[i], theirs[j]

    def proven_kinds(self) -> set[tuple[Kind, Kind]]:
        """Kinds of which numbers say that some of one are some of the other."""
        return set(self._kinds_told({int(i): int(j) for i, j in zip(*np.nonzero(self.values >= PROVEN), strict=True)}))

    def _analogous(self, pairs: Mapping[int, int]) -> Bits:
        """Names of which all that is proven goes together: `Qcur-1` and `layers.1.q_proj`, so `Qcur-2` and its like."""
        seen: dict[Pattern, set[tuple[Pattern, tuple[int, ...]]]] = {}
        for i, j in pairs.items():
            if self.is_proven(i, j):
                (ours, a), (theirs, b) = self._patterns[0][i], self._patterns[1][j]
                if len(a) == len(b):
                    seen.setdefault(ours, set()).add((theirs, tuple(y - x for x, y in zip(a, b, strict=True))))
        where = {one: j for j, one in enumerate(self._patterns[1])}
        found = np.zeros(self.values.shape)
        for i, (pattern, numbers) in enumerate(self._patterns[0]):
            told = seen.get(pattern, set())
            for other, offsets in told if len(told) == 1 else ():
                place = where.get((other, tuple(a + b for a, b in zip(numbers, offsets, strict=True))))
                if place is not None:
                    found[i, place] = ANALOGY
        return found

    def _around(self, pairs: Mapping[int, int]) -> Bits:
        """Runs that read what is paired, and that are read by what is paired."""
        found = np.zeros(self.values.shape)
        said = NEIGHBOUR if self.ours.has_graph and self.theirs.has_graph else NEXT
        for near in (_before, _after):
            counted = np.zeros(self.values.shape)
            for a, b in pairs.items():
                for i in near(self.ours.runs[a]):
                    for j in near(self.theirs.runs[b]):
                        counted[i, j] += 1.0
            found += said * np.minimum(counted, MOST_NEIGHBOURS)
        return found

    def _inside(self, pairs: Mapping[int, int]) -> Bits:
        """Containers that hold the same runs, and such that hold others."""
        found = np.zeros(self.values.shape)
        ours, theirs = self.ours.containers, self.theirs.containers
        if not pairs or not ours or not theirs:
            return found
        a, b = np.array(list(pairs)), np.array(list(pairs.values()))
        left = np.array([[n in held for n in a] for held in ours.values()], np.float32)
        right = np.array([[n in held for n in b] for held in theirs.values()], np.float32)
        both = left @ right.T
        either = left.sum(1)[:, None] + right.sum(1)[None, :] - both
        share = both / np.maximum(either, 1)
        said = np.where(both > 0, CONTENTS * share * share, np.where(either > 0, OTHER_CONTENTS, 0.0))
        found[np.ix_(list(ours), list(theirs))] = said
        return found


def _kind(run: Run, side: Outline) -> Kind:
    """The operation, and what it has: one with a bias is another than one without."""
    return run.op, run.holds, tuple(sorted(side.weights[n].role for n in side.owned.get(run.name, ())))


def _pattern(run: Run) -> tuple[Pattern, tuple[int, ...]]:
    """The name without its numbers, and these."""
    parts = NUMBER.split(run.name)
    return (*parts[::2], str(run.call)), tuple(map(int, parts[1::2]))


def _before(run: Run) -> set[int]:
    return run.before


def _after(run: Run) -> set[int]:
    return run.after


def _holders(side: Outline) -> dict[int, list[int]]:
    """The runs that hold each weight themselves."""
    runs: dict[str, list[int]] = {}
    for run in side.runs:
        runs.setdefault(run.name, []).append(run.place)
    return {n: runs[weight.name] for n, weight in enumerate(side.weights) if weight.name in runs}


def _codes(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    numbered: dict[Hashable, int] = {}
    both = [np.array([numbered.setdefault(one, len(numbered)) for one in side], np.int64) for side in (ours, theirs)]
    return both[0], both[1]


def _table(ours: Outline, theirs: Outline, key: Callable[[Run], Hashable]) -> NDArray[np.bool_]:
    a, b = _codes([key(run) for run in ours.runs], [key(run) for run in theirs.runs])
    same: NDArray[np.bool_] = a[:, None] == b[None, :]
    return same


def _fitting(ours: Outline, theirs: Outline) -> NDArray[np.bool_]:
    """Runs whose results can be brought into one shape, and that hold others or not alike."""
    sizes = _table(ours, theirs, lambda run: prod(dims_of(run.output)) if run.output is not None else None)
    padded = _padded(ours, theirs) if len(ours.runs) and len(theirs.runs) else sizes
    return (sizes | padded) & _table(ours, theirs, lambda run: run.output is None)


def _padded(ours: Outline, theirs: Outline) -> NDArray[np.bool_]:
    """Results of theirs that are longer than ours along one axis alone, as caches are."""
    sides = [[dims_of(run.output) for run in side.runs] for side in (ours, theirs)]
    kinds = [list(dict.fromkeys(side)) for side in sides]
    fits = np.array([[_is_padded(a, b) for b in kinds[1]] for a in kinds[0]], bool)
    rows, columns = ([kind.index(dims) for dims in side] for kind, side in zip(kinds, sides, strict=True))
    found: NDArray[np.bool_] = fits[np.ix_(rows, columns)]
    return found


def _is_padded(ours: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    left, right = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    return len(ours) == len(theirs) > 2 and left.total() == right.total() == 1 and min(left) < min(right)


def _shapes(ours: Outline, theirs: Outline) -> Bits:
    dims = _table(ours, theirs, lambda run: dims_of(run.output))
    exact = _table(ours, theirs, lambda run: None if run.output is None else run.output.shape)
    return np.where(dims, SAME_DIMS, 0.0) + np.where(exact, SAME_SIZE, 0.0)


def _shared_words(ours: Sequence[tuple[str, ...]], theirs: Sequence[tuple[str, ...]]) -> Bits:
    """Rare words that two names share say more than common ones."""
    seen = Counter(word for words in (*ours, *theirs) for word in set(words))
    total = len(ours) + len(theirs)
    found = np.zeros((len(ours), len(theirs)))
    where: dict[str, list[int]] = {}
    for j, words in enumerate(theirs):
        for word in set(words):
            where.setdefault(word, []).append(j)
    for i, words in enumerate(ours):
        for word in set(words):
            if word in where:
                found[i, where[word]] += 0.5 * log2(total / seen[word])
    return found
