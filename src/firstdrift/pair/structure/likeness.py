"""How much speaks for two runs being each other's counterpart, in bits: what they compute, hold, return and read.

Nothing here decides. Names count for little, and never where nothing else speaks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import log2, prod
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from ..conventions import words_of
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
    """Scores of every run of the reference with every one of the candidate, in parts that are made once."""

    def __init__(self, reference: Outline, candidate: Outline, weights: SameWeights) -> None:
        self.reference, self.candidate = reference, candidate
        self.possible = _fitting(reference, candidate)
        self.told = np.array([result is not None and not result.is_constant for result in reference.results], bool)
        self.values = self._values()
        self.kinds_of = tuple([_kind(run, side) for run in side.runs] for side in (reference, candidate))
        self.weights = self._held(weights)
        same_holding = _table(reference, candidate, lambda run: run.holds)
        self.kinds = (
            operations(reference, candidate) - np.where(same_holding, 0.0, SAME_FAMILY) + _shapes(reference, candidate)
        )
        self._patterns = [[_pattern(run) for run in side.runs] for side in (reference, candidate)]
        self.names = shared_words([run.name for run in reference.runs], [run.name for run in candidate.runs])

    def _values(self) -> Bits:
        sides, groups = (self.reference.results, self.candidate.results), (self.reference.groups, self.candidate.groups)
        fine = max((numbers.fine for side in sides for numbers in side if numbers is not None), default=0.0)
        distance = apart(*sides)
        as_they_lie = np.maximum(distance, in_order(*sides))
        found: Bits = np.maximum(bits(as_they_lie, fine, groups), bits(distance, fine, groups))
        found[~self.told] = 0.0
        return found

    def _held(self, weights: SameWeights) -> Bits:
        found = np.zeros((len(self.reference.runs), len(self.candidate.runs)))
        reference, candidate = _holders(self.reference), _holders(self.candidate)
        left, right = [0.0] * len(self.reference.runs), [0.0] * len(self.candidate.runs)
        for a, b in weights.links():
            holders, others = reference.get(a, ()), candidate.get(b, ())
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
                said = [KIND if kind in others else -KIND if kind[0] is not None else 0.0 for kind in self.kinds_of[1]]
                found[[i for i, kind in enumerate(self.kinds_of[0]) if kind == one]] = said
        return found

    def _kinds_told(self, pairs: Mapping[int, int]) -> Iterator[tuple[Kind, Kind]]:
        reference, candidate = self.kinds_of
        for i, j in pairs.items():
            if self.values[i, j] >= PROVEN and reference[i][0] is not None and candidate[j][0] is not None:
                yield reference[i], candidate[j]

    def proven_kinds(self) -> set[tuple[Kind, Kind]]:
        """Kinds of which numbers say that some of one are some of the other."""
        return set(self._kinds_told({int(i): int(j) for i, j in zip(*np.nonzero(self.values >= PROVEN), strict=True)}))

    def _analogous(self, pairs: Mapping[int, int]) -> Bits:
        """Names of which all that is proven goes together: `Qcur-1` and `layers.1.q_proj`, so `Qcur-2` and its like."""
        seen: dict[Pattern, set[tuple[Pattern, tuple[int, ...]]]] = {}
        for i, j in pairs.items():
            if self.is_proven(i, j):
                (reference, a), (candidate, b) = self._patterns[0][i], self._patterns[1][j]
                if len(a) == len(b):
                    seen.setdefault(reference, set()).add((candidate, tuple(y - x for x, y in zip(a, b, strict=True))))
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
        said = NEIGHBOUR if self.reference.has_graph and self.candidate.has_graph else NEXT
        for near in (attrgetter("before"), attrgetter("after")):
            counted = np.zeros(self.values.shape)
            for a, b in pairs.items():
                for i in near(self.reference.runs[a]):
                    counted[i, list(near(self.candidate.runs[b]))] += 1.0
            found += said * np.minimum(counted, MOST_NEIGHBOURS)
        return found

    def _inside(self, pairs: Mapping[int, int]) -> Bits:
        """Containers that hold the same runs, and such that hold others."""
        found = np.zeros(self.values.shape)
        reference, candidate = self.reference.containers, self.candidate.containers
        if not pairs or not reference or not candidate:
            return found
        a, b = np.array(list(pairs)), np.array(list(pairs.values()))
        left = np.array([[n in held for n in a] for held in reference.values()], np.float32)
        right = np.array([[n in held for n in b] for held in candidate.values()], np.float32)
        both = left @ right.T
        either = left.sum(1)[:, None] + right.sum(1)[None, :] - both
        share = both / np.maximum(either, 1)
        said = np.where(both > 0, CONTENTS * share * share, np.where(either > 0, OTHER_CONTENTS, 0.0))
        found[np.ix_(list(reference), list(candidate))] = said
        return found


def _kind(run: Run, side: Outline) -> Kind:
    """The operation, and what it has: one with a bias is another than one without."""
    return run.op, run.holds, tuple(sorted(side.weights[n].role for n in side.owned.get(run.name, ())))


def _pattern(run: Run) -> tuple[Pattern, tuple[int, ...]]:
    """The name without its numbers, and these."""
    parts = NUMBER.split(run.name)
    return (*parts[::2], str(run.call)), tuple(map(int, parts[1::2]))


def _holders(side: Outline) -> dict[int, list[int]]:
    """The runs that hold each weight themselves."""
    runs: dict[str, list[int]] = {}
    for run in side.runs:
        runs.setdefault(run.name, []).append(run.place)
    return {n: runs[weight.name] for n, weight in enumerate(side.weights) if weight.name in runs}


def equal_pairs(reference: Sequence[Hashable], candidate: Sequence[Hashable]) -> NDArray[np.bool_]:
    """Which of the reference's things equal which of the candidate's."""
    numbered: dict[Hashable, int] = {}
    a, b = (np.array([numbered.setdefault(one, len(numbered)) for one in side]) for side in (reference, candidate))
    same: NDArray[np.bool_] = a[:, None] == b[None, :]
    return same


def _table(reference: Outline, candidate: Outline, key: Callable[[Run], Hashable]) -> NDArray[np.bool_]:
    return equal_pairs([key(run) for run in reference.runs], [key(run) for run in candidate.runs])


def _fitting(reference: Outline, candidate: Outline) -> NDArray[np.bool_]:
    """Runs whose results can be brought into one shape, and that hold others or not alike."""
    sizes = _table(reference, candidate, lambda run: prod(dims_of(run.output)) if run.output is not None else None)
    padded = _padded(reference, candidate) if len(reference.runs) and len(candidate.runs) else sizes
    return (sizes | padded) & _table(reference, candidate, lambda run: run.output is None)


def _padded(reference: Outline, candidate: Outline) -> NDArray[np.bool_]:
    """Results of the candidate that are longer than the reference's along one axis alone, as caches are."""
    sides = [[dims_of(run.output) for run in side.runs] for side in (reference, candidate)]
    kinds = [list(dict.fromkeys(side)) for side in sides]
    fits = np.array([[_is_padded(a, b) for b in kinds[1]] for a in kinds[0]], bool)
    rows, columns = ([kind.index(dims) for dims in side] for kind, side in zip(kinds, sides, strict=True))
    found: NDArray[np.bool_] = fits[np.ix_(rows, columns)]
    return found


def _is_padded(reference: tuple[int, ...], candidate: tuple[int, ...]) -> bool:
    left, right = Counter(reference) - Counter(candidate), Counter(candidate) - Counter(reference)
    return len(reference) == len(candidate) > 2 and left.total() == right.total() == 1 and min(left) < min(right)


def _shapes(reference: Outline, candidate: Outline) -> Bits:
    dims = _table(reference, candidate, lambda run: dims_of(run.output))
    exact = _table(reference, candidate, lambda run: None if run.output is None else run.output.shape)
    return np.where(dims, SAME_DIMS, 0.0) + np.where(exact, SAME_SIZE, 0.0)


def shared_words(reference: Sequence[str], candidate: Sequence[str]) -> Bits:
    """What words say that two names share: rare ones more than common ones."""
    words = [[set(words_of(name)) for name in side] for side in (reference, candidate)]
    seen = Counter(word for side in words for name in side for word in name)
    found = np.zeros((len(reference), len(candidate)))
    where: dict[str, list[int]] = {}
    for j, name in enumerate(words[1]):
        for word in name:
            where.setdefault(word, []).append(j)
    for i, name in enumerate(words[0]):
        for word in name & where.keys():
            found[i, where[word]] += 0.5 * log2((len(reference) + len(candidate)) / seen[word])
    return np.minimum(found, MOST_OF_NAMES)
