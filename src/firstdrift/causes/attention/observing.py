"""Scores that are a tensor of their own, as what a softmax is given or returns: of both sides, and which are hidden."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...traces import Array
from ..agreement import limit
from ..evidence import Evidence
from ..regions import heads_of
from .formula import HIDDEN
from .rotary import Floats
from .sources import sources

Places = NDArray[np.bool_]
OFF_ONE = 0.02  # that shares sum to, where they were rounded
NO_SHARE = 1e-30
FEW_SAMPLES, FEW_HEADS, FEW_QUERIES = 8, 2, 12  # that are looked at first


@dataclass(frozen=True, eq=False, slots=True)
class Scores:
    """Both sides' scores (batch, heads, queries, keys), where each shows a key, and the relative error that noise
    explains."""

    expected: Floats
    found: Floats
    expected_shown: Places
    found_shown: Places
    distance: NDArray[np.intp]  # how far a key comes after a query (queries, keys); the last ones are at one place
    limit: float

    @property
    def enough(self) -> float:
        """The norm that noise leaves of what both show."""
        size = np.sqrt([float((x * x).sum(where=self.both)) for x in (self.expected, self.found)])
        return self.limit * float(size.max())

    @property
    def both(self) -> Places:
        """Where both sides show a key."""
        return self.expected_shown & self.found_shown

    def without_itself(self) -> Scores:
        """The same without the keys that are seen by their own query alone, as padding is where it has to see one."""
        own = self.distance == 0
        seen = [(x & ~own).any(axis=(1, 2), keepdims=True) for x in (self.expected_shown, self.found_shown)]
        hidden = own & ~(seen[0] | seen[1])
        return replace(self, expected_shown=self.expected_shown & ~hidden, found_shown=self.found_shown & ~hidden)

    def few(self) -> Scores:
        """Some heads and queries of some samples."""
        rows = np.unique(np.linspace(0, self.expected.shape[2] - 1, FEW_QUERIES).astype(np.intp))
        part = slice(FEW_SAMPLES), slice(FEW_HEADS), rows
        shown = self.expected_shown[part], self.found_shown[part]
        return Scores(self.expected[part], self.found[part], *shown, self.distance[rows], self.limit)


def observed_scores(evidence: Evidence) -> Scores | None:
    """The scores that differ; None where this is another tensor."""
    shape = evidence.expected.shape
    if evidence.site.phase != "fwd" or shape != evidence.found.shape or evidence.expected.dtype.kind != "f":
        return None
    before_softmax = _feeds_softmax(evidence)
    if len(shape) == 3:  # samples and heads in one axis
        heads = heads_of(evidence)
        if not before_softmax or heads is None or shape[0] % heads:
            return None
        shape = (shape[0] // heads, heads, *shape[1:])
    if len(shape) != 4 or min(shape[2:]) < 2 or not (before_softmax or _of_queries_and_keys(evidence)):
        return None
    expected, found = (np.asarray(x, np.float64).reshape(shape) for x in (evidence.expected, evidence.found))
    if np.isnan(expected).any() or np.isnan(found).any():
        return None
    shown = expected > HIDDEN, found > HIDDEN
    scores = Scores(expected, found, *shown, _distance(*shape[2:]), limit(evidence))
    return scores if 0.0 < scores.few().enough < np.inf else None


def observed_shares(evidence: Evidence) -> Iterator[Scores]:
    """The shares of keys that differ, as a softmax leaves them; with all queries, and without those that see none.

    What is hidden has no share, and gives what it had to the other keys of its query: the reference's shares are told
    as those that its keys have of what both sides show. A query of padding that may see nothing shows anything.
    """
    expected, found = (np.asarray(x) for x in (evidence.expected, evidence.found))
    if evidence.site.phase != "fwd" or expected.shape != found.shape or expected.dtype.kind != "f":
        return
    if expected.ndim != 4 or min(expected.shape[2:]) < 2 or not (_are_shares(expected) and _are_shares(found)):
        return
    expected, found = (np.asarray(x, np.float64) for x in (expected, found))
    first = _with_shares(expected), _with_shares(found)
    blind = _blind(first[0]) | _blind(first[1])
    for shown in (first, (first[0] & ~blind, first[1] & ~blind)) if blind.any() else (first,):
        both = shown[0] & shown[1]
        if both.sum() < 2 * both.any(axis=-1).sum():  # one key alone has any share
            continue
        ours, theirs = (np.where(both, x, 0.0).sum(axis=-1, keepdims=True) for x in (expected, found))
        kept = expected * (theirs / np.where(ours > 0, ours, 1.0))
        yield Scores(kept, found, *shown, _distance(*expected.shape[2:]), limit(evidence))


def _are_shares(x: Array) -> bool:
    """Whether numbers are the shares of keys: the first queries are looked at before all."""
    floats = np.asarray(x, np.float64)
    return all(
        bool((y >= 0).all() and (np.abs(y.sum(axis=-1) - 1) < OFF_ONE).all()) for y in (floats[:1, :1, :8], floats)
    )


def _with_shares(shares: Floats) -> Places:
    """Which keys have a share; a query whose keys all have the same sees none of them."""
    level = shares.max(axis=-1, keepdims=True) == shares.min(axis=-1, keepdims=True)
    return np.asarray((shares > NO_SHARE) & ~level)


def _blind(shown: Places) -> Places:
    """The queries that may see nothing: they show no key, or also keys that are hidden from those that see some."""
    all_keys = shown.all(axis=-1, keepdims=True)
    elsewhere = (shown & ~all_keys).any(axis=(1, 2), keepdims=True)
    return np.asarray(
        (all_keys & elsewhere.any(axis=-1, keepdims=True) & ~elsewhere.all(axis=-1, keepdims=True))
        | ~shown.any(axis=-1, keepdims=True)
    )


def _distance(queries: int, keys: int) -> NDArray[np.intp]:
    return np.asarray(np.arange(keys) - np.arange(queries)[:, None] - (keys - queries), np.intp)


def _feeds_softmax(evidence: Evidence) -> bool:
    site = evidence.site
    if not site.port.startswith("in."):
        return False
    around = evidence.around
    ops = (around.op(site), *(around.op(site._replace(port=port)) for port in ("out", "out.0")))
    return any("softmax" in op.lower() for op in ops)


def _of_queries_and_keys(evidence: Evidence) -> bool:
    if not evidence.site.port.startswith("in."):
        return False
    given = sources(evidence, False)
    if given is None or given.observed.ndim != 4:
        return False
    finite = given.observed[np.isfinite(given.observed)]
    return bool((finite < 0).any())  # probabilities are not
