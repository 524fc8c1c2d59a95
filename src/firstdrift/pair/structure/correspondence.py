"""Which run and which weight of one trace is which of another, whatever they are called.

Weights are known by their numbers, runs by what speaks for them in bits (`likeness`), as a whole by the best alignment
in order, and where branches run in another order by being each other's best. Every round knows the neighbours that the
one before has found. What another counterpart would fit nearly as well is ambiguous: it is said, and not taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..moments import PROVEN_BITS
from ..same_weights import SameWeights, same_weights
from .likeness import NEVER, PROVEN, WEIGHT, Bits, Likeness
from .outline import Key, Outline, Parameter
from .owned_weights import SURE, WITHOUT_NAMES, Found, weights_of_owners
from .sequences import Aligned, align_sequences, margins, mutual, rival

ROUNDS = 8
LEAST = 5.0  # bits that a pair has for itself, wherever it stands
ALONE = 10.0  # and where it stands out of order
HALF = 0.5  # of the smaller side: what has to be found where no number agrees


@dataclass(frozen=True)
class Correspondence:
    """What of one outline is what of another, by places. `weights` may have several counterparts, or a part of one."""

    reference: Outline
    candidate: Outline
    same: SameWeights
    runs: Mapping[int, Found] = field(default_factory=dict)
    weights: Mapping[int, Found] = field(default_factory=dict)
    ambiguous: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # runs, and what they may be
    notes: tuple[str, ...] = ()
    refuted: frozenset[str] = frozenset()  # modules of ours whose one likely counterpart has other numbers

    @cached_property
    def names(self) -> dict[str, str]:
        """The candidate's name of every module of the reference that ran."""
        return {
            self.reference.runs[a].name: self.candidate.runs[found.to].name
            for a, found in sorted(self.runs.items(), reverse=True)
        }

    def run_of(self, key: Key) -> tuple[Key, Found] | None:
        """The counterpart of a run."""
        run = self.reference.by_key.get(key)
        found = None if run is None else self.runs.get(run.place)
        if found is None:
            return None
        other = self.candidate.runs[found.to]
        return (other.name, other.call), found

    @cached_property
    def by_parameter(self) -> dict[Parameter, tuple[Parameter, Found]]:
        """The counterpart of every weight that has one of its own."""
        return {self.reference.weights[a].key: (self.candidate.weights[f.to].key, f) for a, f in self.weights.items()}


def correspond(reference: Outline, candidate: Outline, *, names: bool = True) -> Correspondence:
    """Find what belongs together; without `names` as if nothing had one."""
    same = same_weights(reference, candidate)
    likeness = Likeness(reference, candidate, same)
    pairs = _settled(likeness, names)
    refuted: set[tuple[int, int]] = set()
    while wrong := contradicted(likeness, {a: one.to for a, one in pairs.items()}) - refuted:
        refuted |= wrong
        likeness.possible &= ~told_apart(likeness, refuted)
        pairs = _settled(likeness, names)
    owners = {reference.runs[a].name: candidate.runs[found.to].name for a, found in sorted(pairs.items(), reverse=True)}
    weights = weights_of_owners(reference, candidate, same, owners, names=names)
    proven = [a for a in pairs if likeness.values[a, pairs[a].to] >= PROVEN]
    if not proven and not same.one and len(pairs) < HALF * min(len(reference.runs), len(candidate.runs)):
        said = f"the two have nothing in common beyond the kind and shape of {len(pairs)} modules; none was matched"
        return Correspondence(
            reference, candidate, SameWeights(), notes=(said,) if reference.runs and candidate.runs else ()
        )
    taken = {pair.to for pair in pairs.values()}
    left = frozenset(reference.runs[a].name for a, b in refuted if a not in pairs and b not in taken)
    return Correspondence(reference, candidate, same, pairs, weights, _open(likeness, pairs, names), refuted=left)


def _settled(likeness: Likeness, names: bool) -> dict[int, Found]:
    """Rounds of pairing, each with the neighbours that the one before has found, until they change nothing."""
    pairs: dict[int, Found] = {}
    for _ in range(ROUNDS):
        fresh = _paired(likeness, {a: found.to for a, found in pairs.items()}, names)
        if {a: one.to for a, one in fresh.items()} == {a: one.to for a, one in pairs.items()}:
            break
        pairs = fresh
    return pairs


def _paired(likeness: Likeness, known: Mapping[int, int], names: bool) -> dict[int, Found]:
    plain = likeness.scores(known, names=False)
    scores = likeness.scores(known, names=True) if names else plain
    proven = anchored(likeness, scores)
    for side in {id(scores): scores, id(plain): plain}.values():
        side[list(proven)] = NEVER
        side[:, list(proven.values())] = NEVER
    sure = {a: Found(b, _how(likeness, a, b), PROVEN_BITS) for a, b in proven.items()}
    return sure | _by_structure(likeness, scores, plain)


def _by_structure(likeness: Likeness, scores: Bits, plain: Bits) -> dict[int, Found]:
    groups = likeness.reference.groups, likeness.candidate.groups

    def sure(aligned: Sequence[Aligned], leads: Sequence[float]) -> dict[int, Found]:
        return {
            one.reference: Found(one.candidate, _how(likeness, one.reference, one.candidate), one.margin)
            for one, lead in zip(aligned, leads, strict=True)
            if one.margin >= SURE and lead >= WITHOUT_NAMES
        }

    in_order = np.where(scores >= LEAST, scores, 0.0)
    aligned = _unbeaten(align_sequences(in_order, groups), scores)
    places = [(one.reference, one.candidate) for one in aligned]
    found = sure(aligned, margins(np.where(in_order > 0, plain, 0.0), places, groups))
    while True:  # what runs in another order
        left = np.where(scores >= ALONE, scores, 0.0)
        left[list(found)] = 0.0
        left[:, [one.to for one in found.values()]] = 0.0
        bare, aligned = np.where(left > 0, plain, 0.0), mutual(left, groups)
        leads = [bare[i, j] - rival(bare, i, j, groups) for i, j, _ in aligned]
        fresh = sure(aligned, leads)
        if not fresh:
            return found
        found |= fresh


def _unbeaten(aligned: list[Aligned], scores: Bits) -> list[Aligned]:
    """Pairs that neither side would leave for something that stands out of order and has no counterpart."""
    rows, columns = scores.copy(), scores.copy()
    rows[:, [one.candidate for one in aligned]] = NEVER
    columns[[one.reference for one in aligned]] = NEVER
    return [
        one
        for one in aligned
        if max(rows[one.reference].max(), columns[:, one.candidate].max()) < scores[one[:2]] + SURE
    ]


def _how(likeness: Likeness, i: int, j: int) -> str:
    if likeness.weights[i, j] >= WEIGHT:
        return "weights"
    return "numbers" if likeness.values[i, j] >= PROVEN else "structure"


def _open(likeness: Likeness, pairs: Mapping[int, Found], names: bool) -> dict[int, tuple[int, ...]]:
    """Runs without a counterpart that several would fit, or one that fits others as well."""
    scores = likeness.scores({a: found.to for a, found in pairs.items()}, names=names)
    scores[:, [found.to for found in pairs.values()]] = NEVER
    return {
        i: tuple(int(j) for j in np.nonzero(row > row.max() - SURE)[0])
        for i, row in enumerate(scores)
        if i not in pairs and row.max(initial=NEVER) >= LEAST
    }


# What numbers alone prove, whatever the order; and what they speak against.


def anchored(likeness: Likeness, scores: Bits) -> dict[int, int]:
    """Runs whose numbers tell their counterpart. One tensor may be what several runs return: views, dropout in
    evaluation, what a container hands on. Those are told apart only by what they are."""
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
