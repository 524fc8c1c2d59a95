"""Weights known by their numbers: the same under another name, in another layout, joined of several, or a part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .conventions import is_bookkeeping, words_of
from .moments import EXACT, Numbers, agree, apart, joined
from .structure.outline import Outline

MOST_PARTS = 512  # of one tensor: a stack of experts


@dataclass(slots=True)
class SameWeights:
    """Places of the reference's weights with those of the candidate's. `whole` are weights of the reference that the
    candidate has in several, `part` weights of the candidate that are several of the reference's; each in the order
    in which they stand."""

    one: dict[int, int] = field(default_factory=dict)
    whole: dict[int, tuple[int, ...]] = field(default_factory=dict)
    part: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def reference(self) -> set[int]:
        return {*self.one, *self.whole, *(n for parts in self.part.values() for n in parts)}

    def candidate(self) -> set[int]:
        return {*self.one.values(), *self.part, *(n for parts in self.whole.values() for n in parts)}

    def links(self) -> Iterator[tuple[int, int]]:
        """Every weight of the reference with every one of the candidate that holds numbers of it."""
        yield from self.one.items()
        yield from ((a, b) for a, parts in self.whole.items() for b in parts)
        yield from ((a, b) for b, parts in self.part.items() for a in parts)


def same_weights(reference: Outline, candidate: Outline) -> SameWeights:
    """What numbers alone tell. Two tensors of a side with equal numbers are told apart by nothing here."""
    found = SameWeights()
    _one_to_one(reference, candidate, found)
    left = [n for n in _speaking(reference) if n not in found.one]
    taken = found.candidate()
    right = [n for n in _speaking(candidate) if n not in taken]
    found.whole.update(_made_of(reference, left, candidate, right))
    taken = found.candidate()
    left = [n for n in left if n not in found.whole]
    found.part.update(_made_of(candidate, [n for n in right if n not in taken], reference, left))
    return found


def _speaking(side: Outline) -> list[int]:
    """Weights whose numbers say which they are."""
    return [
        n
        for n, (values, weight) in enumerate(zip(side.values, side.weights, strict=True))
        if values is not None
        and not (values.is_constant or values.size <= 1 or weight.is_alias or is_bookkeeping(weight.port))
    ]


def _one_to_one(reference: Outline, candidate: Outline, found: SameWeights) -> None:
    groups: dict[int, tuple[list[int], list[int]]] = {}
    for side, places in ((0, _speaking(reference)), (1, _speaking(candidate))):
        values = (reference, candidate)[side].values
        for n in places:
            groups.setdefault(_count(values[n]), ([], []))[side].append(n)
    for left, right in groups.values():
        if left and right:
            a, b = [reference.values[n] for n in left], [candidate.values[n] for n in right]
            fine = max([numbers.fine for numbers in (*a, *b) if numbers is not None], default=0.0)
            close = apart(a, b) <= max(EXACT, 4 * fine)
            alone = close & (close.sum(1, keepdims=True) == 1) & (close.sum(0, keepdims=True) == 1)
            found.one.update((left[i], right[j]) for i, j in zip(*np.nonzero(alone), strict=True))


def _count(numbers: Numbers | None) -> int:
    return 0 if numbers is None else numbers.size


def _made_of(
    wholes: Outline, large: Sequence[int], others: Outline, small: Sequence[int]
) -> dict[int, tuple[int, ...]]:  # fmt: skip
    """Tensors of one side that are several of the other joined: siblings, next to each other."""
    sums: dict[int, list[tuple[Numbers, tuple[int, ...]]]] = {}
    counts = {_count(wholes.values[n]) for n in large}
    for run in _families(others, small):
        for parts in _stretches(run, others, counts):
            total = joined([one for n in parts if (one := others.values[n]) is not None])
            sums.setdefault(total.size, []).append((total, parts))
    found: dict[int, tuple[int, ...]] = {}
    for n in large:
        value = wholes.values[n]
        fits = {parts for total, parts in sums.get(_count(value), ()) if value is not None and agree(value, total)}
        if len(fits) == 1:
            found[n] = fits.pop()
    used = [n for parts in found.values() for n in parts]
    return {n: parts for n, parts in found.items() if all(used.count(part) == 1 for part in parts)}


def _stretches(run: Sequence[int], side: Outline, counts: set[int]) -> Iterator[tuple[int, ...]]:
    """Runs of siblings that have as many numbers together as some tensor that is looked for."""
    most = max(counts, default=0)
    for start in range(len(run)):
        total = 0
        for stop in range(start, min(len(run), start + MOST_PARTS)):
            total += _count(side.values[run[stop]])
            if total > most:
                break
            if stop > start and total in counts:
                yield tuple(run[start : stop + 1])


def _families(side: Outline, places: Iterable[int]) -> list[list[int]]:
    """Tensors that may be parts of one: of one parent, or of names that differ in one number, in their order."""
    groups: dict[object, list[int]] = {}
    for n in places:
        weight = side.weights[n]
        rank, parent = len(weight.record.shape or ()), weight.name.rpartition(".")[0]
        for key in {parent, _without_last_number(weight.name)}:
            groups.setdefault((rank, weight.role, key), []).append(n)
    return [run for run in groups.values() if len(run) > 1]


def _without_last_number(name: str) -> object:
    """What the experts of one layer share; None where there is no number."""
    words = words_of(name)
    last = max((place for place, word in enumerate(words) if word.isdecimal()), default=None)
    return None if last is None else (*words[:last], "#", *words[last + 1 :])
