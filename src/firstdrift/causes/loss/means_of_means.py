"""A mean over all items against the mean of the means of parts: of micro-batches, of sequences, of calls.

Each part's items get one factor, all items over those of the part and the number of parts. It is seen in the gradient
of the loss, whatever the loss is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...traces import Array
from ..agreement import Floats, distance, factor, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from .loss_readings import inferred_target
from .scores import gradients_of, whole

MOST_PARTS = 64
RECORDED = 1e-6  # relative: what gradients that were stored beside a loss may differ by
TELLING = 1e-4  # relative error of factors, above which they may be those of parts by chance
MOST_SHOWN = 6  # counts of items in a sentence


@dataclass(frozen=True, slots=True)
class _Run:
    """Samples behind each other that have one factor, and how many items they hold."""

    times: float
    items: int
    samples: tuple[int, ...]


def mean_of_means(evidence: Evidence) -> Iterator[Finding]:
    """One side averages the means of parts, the other all items."""
    if evidence.site.phase not in ("loss", "lossgrad"):
        return
    ours, theirs = _gradients(evidence)
    tolerance = max(limit(evidence), RECORDED)
    if ours is None or theirs is None or ours.shape != theirs.shape or len(ours) < 2 or tolerance > TELLING:
        return
    times = _factors(ours, theirs, tolerance)
    if times is None:
        return
    for counts in _counts(ours):
        runs = _runs(times, counts, tolerance)
        if len(runs) < 2 or _are_classes(evidence, ours, runs):
            continue
        for candidate in (True, False):
            found = _parts(runs, candidate, tolerance)
            if found is not None:
                yield _finding(evidence, ours, runs, found, candidate)
                return


def _finding(evidence: Evidence, ours: Floats, runs: list[_Run], parts: list[int], candidate: bool) -> Finding:
    shown = [str(run.items // of) for run, of in zip(runs, parts, strict=True) for _ in range(of)]
    held = ", ".join(shown[:MOST_SHOWN]) + (", ..." if len(shown) > MOST_SHOWN else "")
    means = f"the mean of the means of {len(shown)} parts of the batch, which hold {held} items"
    ways = (means, "the mean over all items")
    sentence = f"the loss is {ways[not candidate]}, instead of {ways[candidate]}"
    said = {"parts": len(shown)}
    if evidence.site.phase == "loss":
        return Finding("reduction-scale", sentence, None, 0, said, residual=0.0)
    predicted = ours.copy()
    for run in runs:
        predicted[list(run.samples)] *= run.times
    return Finding("reduction-scale", sentence, predicted, 0, said)


def _gradients(evidence: Evidence) -> tuple[Floats | None, Floats | None]:
    """The gradient at the scores, of both sides."""
    pair: tuple[Array | None, Array | None] = evidence.expected, evidence.found
    if evidence.site.phase == "loss":
        sites = gradients_of(evidence.site, evidence.around.sites("lossgrad"))
        pair = whole(sites, evidence.around.reference), whole(sites, evidence.around.candidate)
    ours, theirs = (floats(one) if one is not None and one.ndim and np.isfinite(one).all() else None for one in pair)
    return ours, theirs


def _factors(ours: Floats, theirs: Floats, tolerance: float) -> Floats | None:
    """The factor of every sample; NaN where there is nothing; None where one is no factor, or all are the same."""
    found = []
    for a, b in zip(ours, theirs, strict=True):
        times = factor(a, b)
        if np.any(a) != np.any(b) or (np.any(a) and not (times > 0 and distance(times * a, b) <= tolerance)):
            return None
        found.append(times)
    known = np.array([one for one in found if np.isfinite(one)])
    return np.array(found) if len(known) > 1 and np.ptp(known) > 4 * tolerance * known.max() else None


def _counts(ours: Floats) -> Iterator[list[int]]:
    """How many items each sample holds: rows along the axis of classes that have a gradient, or all numbers alike."""
    tried: list[list[int]] = []
    for axis in dict.fromkeys((ours.ndim - 1, 1)) if ours.ndim > 1 else ():
        used = ours.any(axis=axis).reshape(len(ours), -1)
        tried.append([int(one) for one in used.sum(1)])
    tried.append([1] * len(ours))
    yield from (counts for number, counts in enumerate(tried) if counts not in tried[:number])


def _runs(times: Floats, counts: list[int], tolerance: float) -> list[_Run]:
    runs: list[_Run] = []
    for sample, (one, items) in enumerate(zip(times, counts, strict=True)):
        if not np.isfinite(one):
            continue
        if runs and abs(one / runs[-1].times - 1) <= 4 * tolerance:
            last = runs.pop()
            runs.append(_Run(last.times, last.items + items, (*last.samples, sample)))
        else:
            runs.append(_Run(float(one), items, (sample,)))
    return runs


def _parts(runs: list[_Run], candidate: bool, tolerance: float) -> list[int] | None:
    """Of how many parts of equal size every run is; None where the factors are not those of parts."""
    total = sum(run.items for run in runs)
    shares = [(run.times if candidate else 1 / run.times) * run.items / total for run in runs]
    for count in range(len(runs), MOST_PARTS + 1):
        parts = [round(share * count) for share in shares]
        exact = all(
            of > 0 and abs(share * count / of - 1) <= 8 * tolerance for share, of in zip(shares, parts, strict=True)
        )
        if exact and sum(parts) == count:
            return parts if all(run.items % of == 0 for run, of in zip(runs, parts, strict=True)) else None
    return None


def _are_classes(evidence: Evidence, ours: Floats, runs: list[_Run]) -> bool:
    """Whether the factor goes by the class of an item, as balanced weights do, which give the same numbers."""
    told = evidence.around.facts.get("target")
    logits = evidence.inputs.get("logits")
    target = np.asarray(told) if told is not None else None
    if target is None and logits is not None and logits.shape == ours.shape:
        target = inferred_target(floats(logits), ours)
    if target is None or target.dtype.kind not in "iu" or target.shape != (len(ours),):
        return False
    return all(len(np.unique(target[list(run.samples)])) == 1 for run in runs)


HYPOTHESES: tuple[Hypothesis, ...] = (mean_of_means,)
