"""Weights that are right in part: some rows are those of other tensors, or nobody's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...sites import Site
from ...traces import Array
from ..agreement import Floats, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..layout.slice_maps import signatures
from .weight_layouts import is_weight

MOST_READ = 200_000_000  # elements of other weights that are looked at
FEWEST = 4  # numbers of a row, below which the same ones may be chance
ROWS = 1 << 20  # above which rows are not sought
TOLD = 3  # runs of rows that are told one by one
LEAST = 64  # numbers, below which being uncorrelated means little

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Run:
    """Rows from `first` on of the candidate's tensor, which are those from `start` on of another."""

    first: int
    count: int
    site: Site
    start: int

    def __str__(self) -> str:
        there = self.site.port if not self.site.name else f"{self.site.name}.{self.site.port}"
        return f"{{what}} {_span(self.first, self.count)} are {{what}} {_span(self.start, self.count)} of {there}"


def rows_of_others(evidence: Evidence) -> Iterator[Finding]:
    """Rows, or columns, that other weights of the reference hold: split or joined at another place."""
    if not is_weight(evidence):
        return
    for axis in range(min(evidence.found.ndim, 2)):
        found = _rows(evidence.found, axis)
        if found.shape[1] < FEWEST or not 2 <= len(found) <= ROWS or not np.isfinite(found).all():
            continue
        expected = _rows(evidence.expected, axis)
        strange = np.flatnonzero(_off(found, expected, evidence))
        if not len(strange):
            continue
        runs, left, predicted = _traced(evidence, axis, found, expected, strange)
        if not runs or len(left):
            continue
        said = [str(run).format(what=("rows", "columns")[axis]) for run in runs]
        more = f", and {len(said) - TOLD} more runs" if len(said) > TOLD else ""
        label = "weight-swap" if _exchanged(evidence, axis, runs, expected) else "wrong-weight"
        others = sorted({f"{run.site.name}.{run.site.port}" for run in runs})
        shape = np.moveaxis(evidence.found, axis, 0).shape
        yield Finding(
            label, ", ".join(said[:TOLD]) + more, np.moveaxis(predicted.reshape(shape), 0, axis), len(runs),
            {"axis": axis, "of": others[:8], "runs": [[run.first, run.count, run.start] for run in runs[:8]]},
        )  # fmt: skip
        return


def rows_not_loaded(evidence: Evidence) -> Iterator[Finding]:
    """Some rows have nothing to do with the reference's; all others are the reference's."""
    if not is_weight(evidence) or evidence.found.ndim < 2 or not np.isfinite(evidence.found).all():
        return
    found, expected = _rows(evidence.found, 0), _rows(evidence.expected, 0)
    off = _off(found, expected, evidence)
    if off.all() or not off.any() or found[off].size < LEAST:
        return
    a, b = (one[off] - one[off].mean() for one in (expected, found))
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    if (
        size == 0
        or abs(float(np.vdot(a, b))) / size > min(0.25, 5 / np.sqrt(a.size))
        or _alike(expected[off], found[off], evidence)
    ):
        return
    at = np.flatnonzero(off)
    whole = len(at) == at[-1] - at[0] + 1
    where = f"rows {_span(int(at[0]), len(at))}" if whole else f"{len(at)} rows, the first {at[0]},"
    said = f"{where} of {len(off)} have nothing in common with the reference's: not loaded; the others are right"
    predicted = np.where(off[:, None], found, expected).reshape(evidence.found.shape)
    yield Finding("wrong-weight", said, predicted, a.size, {"rows": len(at), "first": int(at[0])})


def _rows(array: Array, axis: int) -> Floats:
    return floats(np.moveaxis(array, axis, 0)).reshape(array.shape[axis], -1)


def _off(found: Floats, expected: Floats, evidence: Evidence) -> NDArray[np.bool_]:
    """The rows that noise does not explain."""
    sizes = np.maximum(np.linalg.norm(found, axis=1), np.linalg.norm(expected, axis=1))
    return np.asarray(np.linalg.norm(found - expected, axis=1) > 2 * limit(evidence) * sizes)


def _alike(a: Floats, b: Floats, evidence: Evidence) -> bool:
    """Whether these are the same rows in another order, or rotated: their lengths are the same."""
    ours, theirs = (np.sort(np.linalg.norm(one, axis=1)) for one in (a, b))
    return bool(np.linalg.norm(ours - theirs) <= limit(evidence) * np.linalg.norm(ours))


def _traced(
    evidence: Evidence, axis: int, found: Floats, expected: Floats, strange: Indices
) -> tuple[list[Run], Indices, Floats]:
    """Runs of rows that other tensors hold, the rows that none holds, and the rows if they were these."""
    predicted, left = expected.copy(), strange
    runs: list[Run] = []
    marks = signatures(found, 0)
    for site, tensor in _others(evidence):
        if tensor.ndim <= axis or tensor.size // tensor.shape[axis] != found.shape[1]:
            continue
        theirs = _rows(tensor, axis)
        at = _matched(marks[left], signatures(theirs, 0), limit(evidence))
        hit = at >= 0
        hit[hit] = ~_off(found[left[hit]], theirs[at[hit]], evidence) & found[left[hit]].any(1)
        if hit.any():
            predicted[left[hit]] = theirs[at[hit]]
            runs += _runs(left[hit], at[hit], site)
            left = left[~hit]
        if not len(left):
            break
    return sorted(runs, key=lambda run: run.first), left, predicted


def _matched(marks: Floats, others: Floats, tolerance: float) -> Indices:
    """For every number the place of the nearest of others, or -1 where none is near."""
    order = np.argsort(others)
    after = np.clip(np.searchsorted(others[order], marks), 1, max(len(others) - 1, 1))
    near = np.stack([order[after - 1], order[np.minimum(after, len(others) - 1)]])
    errors = np.abs(others[near] - marks)
    best = errors.argmin(0)
    place = near[best, np.arange(len(marks))]
    allowed = 64 * tolerance * np.maximum(np.abs(marks), float(np.sqrt(np.mean(np.square(others)))))
    return np.where(errors.min(0) <= allowed, place, -1)


def _runs(rows: Indices, at: Indices, site: Site) -> list[Run]:
    breaks = np.flatnonzero((np.diff(rows) != 1) | (np.diff(at) != 1)) + 1
    parts = zip(np.split(rows, breaks), np.split(at, breaks), strict=True)
    return [Run(int(mine[0]), len(mine), site, int(theirs[0])) for mine, theirs in parts]


def _exchanged(evidence: Evidence, axis: int, runs: list[Run], expected: Floats) -> bool:
    """Whether the rows that were replaced are where the others came from."""
    if len({run.site for run in runs}) > 1:
        return False
    there = evidence.around.candidate(runs[0].site)
    if there is None or there.ndim <= axis:
        return False
    theirs = _rows(there, axis)
    at = np.concatenate([np.arange(run.first, run.first + run.count) for run in runs])
    if theirs.shape[1] != expected.shape[1]:
        return False
    place = _matched(signatures(expected, 0)[at], signatures(theirs, 0), limit(evidence))
    return bool((place >= 0).all() and not _off(expected[at], theirs[place], evidence).any())


def _others(evidence: Evidence) -> Iterator[tuple[Site, Array]]:
    """Other weights, those of the nearest modules first."""
    site, read = evidence.site, 0
    others = [other for other in evidence.around.sites("weight") if other != site and other.step == site.step]
    for other in sorted(others, key=lambda other: -_shared(site.name, other.name)):
        tensor = evidence.around.reference(other)
        read += 0 if tensor is None else tensor.size
        if read > MOST_READ:
            return
        if tensor is not None:
            yield other, tensor


def _shared(a: str, b: str) -> int:
    """How many parts of two names are the same from the start on."""
    pairs = zip(a.split("."), b.split("."), strict=False)
    return next((count for count, (x, y) in enumerate(pairs) if x != y), min(a.count("."), b.count(".")) + 1)


def _span(first: int, count: int) -> str:
    return f"{first} to {first + count - 1}" if count > 1 else str(first)


HYPOTHESES: tuple[Hypothesis, ...] = (rows_of_others, rows_not_loaded)
