"""Which run and which weight of one trace is which of another, whatever they are called.

Weights are known by their numbers, runs by what speaks for them in bits (`likeness`), as a whole by the best alignment
in order, and where branches run in another order by being each other's best. Every round knows the neighbours that the
one before has found. What another counterpart would fit nearly as well is ambiguous: it is said, and not taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..moments import PROVEN_BITS
from ..same_weights import SameWeights, same_weights
from .anchors import SURE, anchored, contradicted, told_apart
from .likeness import NEVER, PROVEN, WEIGHT, Bits, Likeness
from .outline import Key, Outline, Parameter
from .owned_weights import weights_of_owners
from .sequences import Aligned, Groups, align_sequences, margins, mutual, rival

ROUNDS = 8
WITHOUT_NAMES = 0.5  # bits by which it has to be, names apart
LEAST = 5.0  # bits that a pair has for itself, wherever it stands
ALONE = 10.0  # and where it stands out of order
HALF = 0.5  # of the smaller side: what has to be found where no number agrees


@dataclass(frozen=True, slots=True)
class Found:
    """A counterpart, what told it, and how sure that is, in bits."""

    to: int
    how: str
    bits: float


@dataclass(frozen=True)
class Correspondence:
    """What of one outline is what of another, by places. `weights` may have several counterparts, or a part of one."""

    ours: Outline
    theirs: Outline
    same: SameWeights
    runs: Mapping[int, Found] = field(default_factory=dict)
    weights: Mapping[int, Found] = field(default_factory=dict)
    ambiguous: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # runs, and what they may be
    notes: tuple[str, ...] = ()
    refuted: frozenset[str] = frozenset()  # modules of ours whose one likely counterpart has other numbers

    @cached_property
    def names(self) -> dict[str, str]:
        """The candidate's name of every module of ours that ran."""
        return {
            self.ours.runs[a].name: self.theirs.runs[found.to].name
            for a, found in sorted(self.runs.items(), reverse=True)
        }

    def run_of(self, key: Key) -> tuple[Key, Found] | None:
        """The counterpart of a run."""
        run = self.ours.by_key.get(key)
        found = None if run is None else self.runs.get(run.place)
        if found is None:
            return None
        other = self.theirs.runs[found.to]
        return (other.name, other.call), found

    @cached_property
    def by_parameter(self) -> dict[Parameter, tuple[Parameter, Found]]:
        """The counterpart of every weight that has one of its own."""
        return {self.ours.weights[a].key: (self.theirs.weights[f.to].key, f) for a, f in self.weights.items()}


def correspond(ours: Outline, theirs: Outline, *, names: bool = True) -> Correspondence:
    """Find what belongs together; without `names` as if nothing had one."""
    same = same_weights(ours, theirs)
    likeness = Likeness(ours, theirs, same)
    pairs = _settled(likeness, names)
    refuted: set[tuple[int, int]] = set()
    while wrong := contradicted(likeness, {a: one.to for a, one in pairs.items()}) - refuted:
        refuted |= wrong
        likeness.possible &= ~told_apart(likeness, refuted)
        pairs = _settled(likeness, names)
    owners = {ours.runs[a].name: theirs.runs[found.to].name for a, found in sorted(pairs.items(), reverse=True)}
    weights = weights_of_owners(ours, theirs, same, owners, names=names)
    proven = [a for a in pairs if likeness.values[a, pairs[a].to] >= PROVEN]
    if not proven and not same.one and len(pairs) < HALF * min(len(ours.runs), len(theirs.runs)):
        said = f"the two have nothing in common beyond the kind and shape of {len(pairs)} modules; none was matched"
        return Correspondence(ours, theirs, SameWeights(), notes=(said,) if ours.runs and theirs.runs else ())
    found = {a: Found(b, how, bits) for a, (b, how, bits) in weights.items()}
    taken = {one.to for one in pairs.values()}
    left = frozenset(ours.runs[a].name for a, b in refuted if a not in pairs and b not in taken)
    return Correspondence(ours, theirs, same, pairs, found, _open(likeness, pairs, names), refuted=left)


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
    in_order = np.where(scores >= LEAST, scores, 0.0)
    groups = likeness.ours.groups, likeness.theirs.groups
    aligned = _unbeaten(align_sequences(in_order, groups), scores)
    unnamed = margins(np.where(in_order > 0, plain, 0.0), [(one.ours, one.theirs) for one in aligned], groups)
    found = {
        one.ours: Found(one.theirs, _how(likeness, one.ours, one.theirs), one.margin)
        for one, margin in zip(aligned, unnamed, strict=True)
        if one.margin >= SURE and margin >= WITHOUT_NAMES
    }
    while True:  # what runs in another order
        left = np.where(scores >= ALONE, scores, 0.0)
        left[list(found)] = 0.0
        left[:, [one.to for one in found.values()]] = 0.0
        bare = np.where(left > 0, plain, 0.0)
        sure = [one for one in mutual(left, groups) if one.margin >= SURE]
        sure = [one for one in sure if _lead(bare, one, groups) >= WITHOUT_NAMES]
        if not sure:
            return found
        found |= {one.ours: Found(one.theirs, _how(likeness, one.ours, one.theirs), one.margin) for one in sure}


def _unbeaten(aligned: list[Aligned], scores: Bits) -> list[Aligned]:
    """Pairs that neither side would leave for something that stands out of order and has no counterpart."""
    rows, columns = [one.ours for one in aligned], [one.theirs for one in aligned]
    left = scores.copy()
    left[:, columns] = NEVER
    up = scores.copy()
    up[rows] = NEVER
    return [
        one
        for one in aligned
        if max(left[one.ours].max(), up[:, one.theirs].max()) < scores[one.ours, one.theirs] + SURE
    ]


def _lead(scores: Bits, one: Aligned, groups: Groups) -> float:
    return float(scores[one.ours, one.theirs]) - rival(scores, one.ours, one.theirs, groups)


def _how(likeness: Likeness, i: int, j: int) -> str:
    if likeness.weights[i, j] >= WEIGHT:
        return "weights"
    return "numbers" if likeness.values[i, j] >= PROVEN else "structure"


def _open(likeness: Likeness, pairs: Mapping[int, Found], names: bool) -> dict[int, tuple[int, ...]]:
    """Runs without a counterpart that several would fit, or one that fits others as well."""
    scores = likeness.scores({a: found.to for a, found in pairs.items()}, names=names)
    scores[:, [found.to for found in pairs.values()]] = NEVER
    found = {}
    for i in range(len(scores)):
        if i not in pairs and scores.shape[1]:
            best = scores[i].max()
            if best >= LEAST:
                found[i] = tuple(int(j) for j in np.nonzero(scores[i] > best - SURE)[0])
    return found
