"""A bias of scores that is another one, read off the difference: by distance, or the same for all samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..evidence import Evidence
from ..hypotheses import Finding
from .formula import divide
from .nearby import tables_of
from .observing import Places, Scores, observed_scores
from .proposals import even_slopes, slopes
from .rotary import Floats
from .sources import sources

MOST_ROWS = 1024  # of a table, whose differences are looked at
SAMPLES = 4  # from which the reference's own bias is told
REDUNDANT = 2  # scores for each number of a bias
CLEARLY = 100.0  # times what noise leaves: by so much scores vary, where a bias is no accident


@dataclass(frozen=True, eq=False, slots=True)
class _Change:
    """What is added to the scores where both sides show a key, and the norm that noise leaves of them."""

    scores: Scores
    added: Floats
    shown: Places
    enough: float

    @classmethod
    def of(cls, scores: Scores) -> _Change:
        shown = scores.both
        with np.errstate(invalid="ignore"):
            return cls(scores, np.where(shown, scores.found - scores.expected, 0.0), shown, scores.enough)

    def leaves(self, bias: Floats) -> float:
        """The norm of what a bias does not explain."""
        off = self.added - bias
        return float(np.sqrt((off * off).sum(where=self.shown)))

    def explained(self, bias: Floats | None) -> bool:
        """Whether noise explains what a bias leaves."""
        return bias is not None and self.leaves(bias) <= self.enough


def other_bias(evidence: Evidence) -> Iterator[Finding]:
    """The difference is a bias: linear in the distance, any function of it, or any that all samples share."""
    scores = observed_scores(evidence)
    if scores is None:
        return
    few = _Change.of(scores.few())
    kinds = [one for one in (True, False) if few.explained(_shared(few, few.added, one))]
    if not kinds or not np.array_equal(scores.expected_shown, scores.found_shown):
        return
    change = _Change.of(scores)
    if change.leaves(np.zeros(1)) <= CLEARLY * change.enough:
        return
    found = _linear(evidence, change) if True in kinds else None
    yield from [found] if found is not None else _tabled(evidence, change, kinds)


def _linear(evidence: Evidence, change: _Change) -> Finding | None:
    """Slopes of the heads, which differ; whether both sides have some is told by what the slopes are."""
    heads, distance = change.added.shape[1], np.asarray(change.scores.distance, np.float64)
    for far in (np.abs(distance), -distance):
        where = np.where(change.shown, far, 0.0)
        square = (where * where).sum(axis=(0, 2, 3))
        if (square == 0).any() or np.count_nonzero(change.shown) < REDUNDANT * heads:
            return None
        falls = -(change.added * where).sum(axis=(0, 2, 3)) / square  # a positive slope is a bias that falls
        bias = -falls[:, None, None] * far
        if not change.explained(bias):
            continue
        label, said, free = _slopes_said(falls, change.enough / np.sqrt(square))
        predicted = _restored(evidence, change, bias)
        return Finding(label, said, predicted, free, {"slopes_added": [float(one) for one in falls]})
    return None


def _slopes_said(falls: Floats, slack: Floats) -> tuple[str, str, int]:
    heads = len(falls)
    usual = {"of the nearest power of two, and more": slopes(heads), "falling geometrically over all heads":
             even_slopes(heads)}  # fmt: skip

    def is_(wanted: Floats) -> bool:
        return bool((np.abs(falls - wanted) <= slack).all())

    for name, ours in usual.items():
        for sign, what in ((1.0, "added that the reference has not"), (-1.0, "missing")):
            if is_(sign * ours):  # one number, since twice the slopes would look so too
                return "missing-term", f"linear position biases are {what}", 1
        for other, theirs in usual.items():
            if other != name and is_(theirs - ours):
                return "alibi-slope", f"the slopes are those {other} instead of those {name}", 0
    return "alibi-slope", "the scores differ by a slope of each head times the distance of query and key", heads


def _tabled(evidence: Evidence, change: _Change, kinds: list[bool]) -> Iterator[Finding]:
    """A bias without a formula, by distance or not, which is not another reading of the one that the reference has."""
    for by_distance in kinds:
        bias = _shared(change, change.added, by_distance)
        if bias is None or not change.explained(bias):
            continue
        own = _shared(change, np.where(change.shown, change.scores.expected, 0.0), by_distance)
        assert own is not None  # as there is a bias of the same places
        varies = float(np.linalg.norm(np.where(change.shown, change.scores.expected - own, 0.0)))
        if varies <= CLEARLY * change.enough:  # anything would be a bias
            return
        said = _bias_said(evidence, change, bias)
        if said is not None:
            what = "depends on the distance of query and key only" if by_distance else "is the same for all samples"
            label, sentence, is_known = said
            heads, queries, keys = bias.shape
            numbers = heads * (queries + keys - 1) if by_distance else bias.size
            predicted = _restored(evidence, change, bias)
            facts = {"by_distance": by_distance}
            yield Finding(label, f"{sentence}, which {what}", predicted, 1 if is_known else numbers, facts)
        return


def _shared(change: _Change, added: Floats, by_distance: bool) -> Floats | None:
    """The mean (heads, queries, keys) of what is added at one place, or at one distance; None where that is little."""
    shown, distance = change.shown, change.scores.distance
    total, count = (added * shown).sum(axis=0), shown.sum(axis=0).astype(np.float64)
    if by_distance:
        places = distance - distance.min()
        size = int(places.max()) + 1
        total, count = (
            np.stack([np.bincount(places.ravel(), one.ravel(), size) for one in x])[:, places] for x in (total, count)
        )
        numbers = len(total) * size
    else:
        numbers = int(np.count_nonzero(count))
    if np.count_nonzero(shown) < REDUNDANT * numbers:
        return None
    return np.asarray(total / np.maximum(count, 1.0))


def _bias_said(evidence: Evidence, change: _Change, bias: Floats) -> tuple[str, str, bool] | None:
    """The label of a bias, what to say of it, and whether it has no number of its own; None where it may be the
    reference's own, read in another way."""
    own = _own_bias(evidence, change)
    slack = CLEARLY * change.enough / np.sqrt(np.count_nonzero(change.shown))
    seen = np.asarray(change.shown.any(axis=0))
    if own is not None:
        now = np.where(seen, own + bias, 0.0)
        if np.abs(own).max() <= slack:
            return "missing-term", "a bias is added to the scores that the reference has not", False
        if np.abs(now).max() <= slack:
            return "missing-term", "the bias of the scores is missing", True
        factor = float((now * own).sum() / (own * own).sum())
        if np.abs(now - factor * own).max() <= slack:
            return "scale", f"the bias of the scores is multiplied by {factor:.6g}", True
        read_otherwise = any(_among(now[head][seen[head]], own[head][seen[head]], slack) for head in range(len(own)))
        return None if read_otherwise else ("missing-term", "the scores have another bias than in the reference", False)
    for _, table in tables_of(evidence):
        rows = table if table.shape[0] == len(bias) else table.T
        if rows.shape[0] == len(bias) and rows.shape[1] <= MOST_ROWS:
            apart = rows[:, :, None] - rows[:, None]
            if any(_among(bias[head][seen[head]], apart[head].ravel(), slack) for head in range(len(bias))):
                return None
    if bias.shape[1] == bias.shape[2] and np.abs(bias + bias.swapaxes(1, 2)).max() <= slack:
        return None  # as of a bias whose queries and keys are exchanged
    return "missing-term", "the scores have a bias beside what the reference adds to them", False


def _among(values: Floats, menu: Floats, slack: float) -> bool:
    """Whether each of some values is one of a menu."""
    if values.size == 0 or np.ptp(values) <= slack:
        return False
    known = np.sort(menu)
    at = np.searchsorted(known, values)
    near = np.minimum(
        np.abs(known[np.minimum(at, len(known) - 1)] - values), np.abs(known[np.maximum(at - 1, 0)] - values)
    )
    return bool((near <= slack).all())


def _own_bias(evidence: Evidence, change: _Change) -> Floats | None:
    """The reference's bias (heads, queries, keys): what its scores have besides products of queries and keys, where
    these are known and a factor on them leaves the same in all samples."""
    given = sources(evidence, False)
    shown = np.asarray(change.shown.all(axis=0))
    if given is None or given.observed.shape != change.added.shape or not {"q", "k"} <= set(given.parts):
        return None
    heads, q, k = change.added.shape[1], given.parts["q"][:SAMPLES], given.parts["k"][:SAMPLES]
    channels = q.shape[-1] // heads
    if len(q) < 2 or q.shape[-1] % heads or k.shape[-1] % channels or heads % (k.shape[-1] // channels):
        return None
    kv_heads = k.shape[-1] // channels
    keys = np.repeat(divide(k, kv_heads, "thd"), heads // kv_heads, axis=2)
    products = divide(q, heads, "thd").transpose(0, 2, 1, 3) @ keys.transpose(0, 2, 3, 1)
    scores = np.where(shown, change.scores.expected[:SAMPLES], 0.0)
    products = np.where(shown, products, 0.0)
    apart, wanted = products - products.mean(axis=0), scores - scores.mean(axis=0)
    square = float((apart * apart).sum())
    scale = float((apart * wanted).sum()) / square if square > 0 else 0.0
    if float(np.linalg.norm(wanted - scale * apart)) > change.enough:
        return None
    return np.asarray((scores - scale * products).mean(axis=0))


def _restored(evidence: Evidence, change: _Change, bias: Floats) -> Floats:
    made = np.where(change.shown, change.scores.expected + bias, change.scores.found)
    return made.reshape(evidence.found.shape)
