"""Weights of the chosen experts that are divided by their sum on one side only, read off the weights alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..agreement import Floats, distance, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from .expert_sums import rows

FEWEST = 8  # tokens before sums that are all alike mean anything
VARIED = 1e-3  # relative spread of the sums: what is less is one factor for all
MOST_CHOSEN = 64


def renormalised(evidence: Evidence) -> Iterator[Finding]:
    """Every token's weights are the reference's times a factor of its own, and on one side all sums are alike.

    A softmax over everything may be normalised otherwise, too: the weights must be those of a choice.
    """
    if evidence.site.phase != "fwd" or evidence.expected.shape != evidence.found.shape:
        return
    expected, found = rows(evidence.expected), rows(evidence.found)
    if expected is None or found is None or len(expected) < FEWEST or not (_chosen(expected) and _chosen(found)):
        return
    shares = [one / one.sum(1, keepdims=True) for one in (expected, found)]
    left = distance(*shares)
    enough = limit(evidence)
    if left > enough:
        return
    alike, other = (_total(one.sum(1), enough) for one in (expected, found))
    if (alike is None) == (other is None):
        return
    now = alike is None
    total = other if alike is None else alike
    said = "are renormalised to sum to {:.6g}, which the reference does not do" if now else "do not sum to {:.6g}"
    facts = {"renormalised": now, "sum": total}
    yield Finding("router-renorm", f"the weights of the chosen experts {said.format(total)}", None, 0, facts, left)


def _total(sums: Floats, enough: float) -> float | None:
    """What all sums are, where they are alike; None where they surely are not; one that is doubtful counts as alike."""
    middle, spread = float(sums.mean()), float(sums.std())
    return None if spread > max(VARIED, 8 * enough) * middle else middle


def _chosen(weights: Floats) -> bool:
    """Whether rows are weights of chosen experts: the largest first, or as many in each row with others between."""
    width = weights.shape[1]
    if width < 2 or (weights < 0).any() or not (weights.sum(1) > 0).all():
        return False
    given = weights > 0
    if given.all():
        steps = np.diff(weights, axis=1)
        return width <= MOST_CHOSEN and bool((steps <= 0).all() and (steps < 0).any())
    count = given.sum(1)
    first, last = given.argmax(1), width - 1 - given[:, ::-1].argmax(1)
    apart = (last - first + 1 > count).any()  # a mask leaves those in a row, or the same ones everywhere
    return bool((count == count[0]).all() and count[0] > 1 and apart and (given != given[0]).any())


HYPOTHESES: tuple[Hypothesis, ...] = (renormalised,)
