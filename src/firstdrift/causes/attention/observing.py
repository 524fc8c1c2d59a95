"""Scores that are a tensor of their own, as what a softmax is given: of both sides, and which of them are hidden."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..agreement import limit
from ..evidence import Evidence
from ..regions import heads_of
from .formula import HIDDEN
from .rotary import Floats
from .sources import sources

Places = NDArray[np.bool_]
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
    queries, keys = shape[2:]
    distance = np.asarray(np.arange(keys) - np.arange(queries)[:, None] - (keys - queries), np.intp)
    scores = Scores(expected, found, *shown, distance, limit(evidence))
    return scores if 0.0 < scores.few().enough < np.inf else None


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
