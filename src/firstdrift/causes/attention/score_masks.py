"""Which keys are hidden, read off the scores or shares: two masks that differ by a diagonal, a band or padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ..evidence import Evidence
from ..hypotheses import Finding
from .mask_edges import moved_edges
from .observing import Places, Scores, observed_scores, observed_shares

Said = tuple[str, str, int, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Band:
    """The nearest and the farthest key that queries see, by how far it comes after them."""

    first: int
    last: int

    @property
    def is_causal(self) -> bool:
        return self.last == 0


def other_mask(evidence: Evidence) -> Iterator[Finding]:
    """The scores, or shares, that both sides show agree, and what each hides differs in a way that has a name."""
    scores = observed_scores(evidence)
    readings = observed_shares(evidence) if scores is None else iter([scores])
    for one in readings:
        ways = (_open,) if scores is not None else ()
        told = (*_named(evidence, one, (*ways, _bands, _padding)),) or (
            *_named(evidence, one.without_itself(), (_bands, _padding)),
        )
        yield from told
        if told:
            return


def _named(evidence: Evidence, scores: Scores, ways: Iterable[Callable[[Scores], Iterator[Said]]]) -> Iterator[Finding]:
    """The first name that there is for where two masks differ."""
    if np.array_equal(scores.expected_shown, scores.found_shown):
        return
    both = scores.both
    left = float(np.linalg.norm((scores.found - scores.expected)[both]))
    if not both.any() or left > scores.enough:
        return
    predicted = np.where(both, scores.expected, scores.found).reshape(evidence.found.shape)
    for label, said, free, facts in chain.from_iterable(way(scores) for way in ways):
        yield Finding(label, said, predicted, free, facts)
        return


def _open(scores: Scores) -> Iterator[Said]:
    """Hidden keys have a score that hides nothing."""
    gained = scores.found_shown & ~scores.expected_shown
    values = scores.found[gained]
    if not scores.found_shown.all() or values.size < 2 or np.ptp(values) > 0:
        return
    value = float(values[0])
    said = f"the scores of hidden keys are set to {value:.6g}, which hides nothing"
    yield "mask-missing", said, 0, {"hidden": value}


def _bands(scores: Scores) -> Iterator[Said]:
    """Both sides show a band around the diagonal, each its own, among keys that no padding hides."""
    real = np.asarray((scores.expected_shown | scores.found_shown).any(axis=(1, 2), keepdims=True))
    ours, theirs = (_band(scores, shown, real) for shown in (scores.expected_shown, scores.found_shown))
    if ours is None or theirs is None or ours == theirs:
        return
    distance = scores.distance
    low, high = int(distance.min()), int(distance.max())
    facts = {"band": [theirs.first, theirs.last], "reference_band": [ours.first, ours.last]}
    if (theirs.first, theirs.last) == (low, high) and ours.first > low:
        yield "mask-missing", "keys are seen that the window of the reference hides", 0, facts
    elif (ours.first, ours.last) == (low, high) and theirs.first == -theirs.last:
        said = f"a window of {theirs.last} keys to each side is applied that the reference has not"
        yield "window-off-by-one", said, 1, facts | {"window": theirs.last, "reference_window": None}
    elif ours.last == theirs.last:
        yield _one_side(ours.first, theirs.first, low, "before", facts)
    elif ours.first == theirs.first and (ours.is_causal or theirs.is_causal):
        yield _causal(ours, theirs, high, facts)
    elif ours.first == theirs.first:
        yield _one_side(ours.last, theirs.last, high, "after", facts)
    elif ours.last - theirs.last == theirs.first - ours.first and ours.first == -ours.last:
        yield _width(abs(ours.last), abs(theirs.last), "to each side", facts)
    elif ours.last - theirs.last == ours.first - theirs.first:
        step = theirs.last - ours.last
        yield "mask-off-by-one", f"the band of keys that a query sees is moved by {step}", 0, facts | {"diagonal": step}


def _one_side(ours: int, theirs: int, end: int, side: str, facts: dict[str, Any]) -> Said:
    if theirs == end and abs(theirs - ours) > 1:
        return "mask-missing", f"the window does not end among the keys {side} a query", 0, facts
    if ours == end and abs(theirs - ours) > 1:
        said = f"a window of {abs(theirs)} keys {side} a query is applied that the reference has not"
        return "window-off-by-one", said, 1, facts
    return _width(abs(ours), abs(theirs), f"{side} a query", facts)


def _width(ours: int, theirs: int, where: str, facts: dict[str, Any]) -> Said:
    said = f"the window reaches {theirs} keys {where} instead of {ours}"
    facts = facts | {"window": theirs, "reference_window": ours}
    return "window-off-by-one", said, 0 if abs(ours - theirs) == 1 else 1, facts


def _causal(ours: _Band, theirs: _Band, high: int, facts: dict[str, Any]) -> Said:
    if ours.is_causal and abs(theirs.last) == 1:
        what = "sees one key too many, of the future" if theirs.last > 0 else "does not see its own key"
        return "mask-off-by-one", f"each query {what}", 0, facts | {"diagonal": theirs.last}
    if theirs.is_causal and ours.last < high:
        return "mask-off-by-one", f"each query sees {ours.last} keys too few, of the future", 1, facts
    if theirs.is_causal:
        return "mask-missing", "a causal mask is applied that the reference has not", 0, facts
    if theirs.last == high:
        return "mask-missing", "the causal mask is ignored", 0, facts
    step = theirs.last
    return "mask-off-by-one", f"the causal diagonal is moved by {step}", 1, facts | {"diagonal": step}


def _band(scores: Scores, shown: Places, real: Places) -> _Band | None:
    """The band that a side shows of real keys; None where it shows anything else."""
    distance = scores.distance
    seen = distance[shown.any(axis=(0, 1))]
    if not seen.size:
        return None
    band = _Band(int(seen.min()), int(seen.max()))
    inside = (distance >= band.first) & (distance <= band.last)
    rows = shown.any(axis=-1, keepdims=True)  # a query of padding may see nothing
    return band if np.array_equal(shown, inside & real & rows) else None


def _padding(scores: Scores) -> Iterator[Said]:
    """The keys that one side hides in all queries of a sample are all shown on the other, or those at the edges of what
    is hidden. `ours` is (batch, keys)."""
    ours, theirs = (np.asarray(shown.any(axis=(1, 2))) for shown in (scores.expected_shown, scores.found_shown))
    common = (ours & theirs)[:, None, None]
    if not np.array_equal(scores.expected_shown & common, scores.found_shown & common):
        return
    changed = np.asarray((ours != theirs).any(axis=1))
    where = f"in {int(changed.sum())} of {len(ours)} samples"
    facts = {"samples": int(changed.sum())}
    if changed.any() and theirs[changed].all():
        yield "mask-missing", f"keys are seen that the mask of the reference hides, {where}", 0, facts
    elif changed.any() and ours[changed].all():
        yield "mask-missing", f"keys are hidden by a mask that the reference has not, {where}", 0, facts
    for said, moved in moved_edges(ours) if changed.any() else ():
        if np.array_equal(theirs, moved):
            yield "mask-off-by-one", f"{said}, {where}", 0, facts
