"""A parameter that is resized to another grid and added between modules: by another kind of interpolation, or corners.

What else is added need not be known: the two sides differ by the table resized in two ways, alike in every sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from ...sites import Site
from ...traces import Array
from ..agreement import floats, limit
from ..evidence import Evidence
from ..formulas.resize import Floats
from ..hypotheses import DOMINANT, Finding, Hypothesis
from ..variants import forward, misfit
from .pooling import WAYS, Way
from .resized_tables import FEW, LARGEST, Reading, Table, grids, readings, tables

MANY = 32  # numbers, below which a difference may be that of two ways by chance
MOST_FIRST = 8  # tokens before the grid, such as a class token and registers


def resized_addend(evidence: Evidence) -> Iterator[Finding]:
    """What is added is a parameter, resized; in the candidate, resized in another way."""
    if not forward(evidence) or not MANY <= evidence.expected.size <= LARGEST:
        return
    difference = floats(evidence.found) - floats(evidence.expected)
    if not np.isfinite(difference).all() or not difference.any():
        return
    for site in _held(evidence):
        ours, theirs = evidence.around.reference(site), evidence.around.candidate(site)
        if ours is None or theirs is None or ours.shape != theirs.shape or ours.dtype.kind != "f":
            continue
        if not 1 < ours.size <= LARGEST:
            continue
        for table, own in zip(tables(ours), tables(theirs), strict=True):
            found = _explained(evidence, difference, table, own, site.port)
            if found is not None:
                yield found
                return


def _held(evidence: Evidence) -> Iterator[Site]:
    """The parameters of modules around the tensor, and of those that only hold parameters."""
    site, around = evidence.site, evidence.around
    ran = {(one.step, one.name) for one in around.sites("fwd")}
    for one in around.sites("weight"):
        is_around = not one.name or site.name.startswith(f"{one.name}.")
        if one.step == site.step and (is_around or (one.step, one.name) not in ran or one.name == site.name):
            yield one


def _explained(evidence: Evidence, difference: Array, ours: Table, theirs: Table, name: str) -> Finding | None:
    few = slice(0, FEW)
    for reading in readings(evidence.expected.shape, len(ours.grid)):
        samples = difference.reshape(reading.samples, -1)
        if misfit(samples[-1], samples[0]) > 2 * DOMINANT:
            continue
        rows = reading.rows(difference)
        for first in range(_untouched(evidence, reading, rows) + 1):
            wanted = rows[first:, few]
            for out in _sizes(reading, first, ours.grid.ndim - 1):
                pair = _ways(ours.some(few), theirs.some(few), out, wanted)
                if pair is None:
                    continue
                own, way = pair
                made = _grid(theirs, out, way) - _grid(ours, out, own)
                added = np.concatenate((np.zeros((first, made.shape[1])), made))
                said = f"the {name} that is added is resized by {way} instead of {own}"
                return Finding("interpolation", said, floats(evidence.expected) + reading.whole(added), 0, asdict(way))
    return None


def _untouched(evidence: Evidence, reading: Reading, rows: Floats) -> int:
    """How many of the first tokens do not differ."""
    if len(reading.space) > 1:
        return 0
    size = limit(evidence) * float(np.sqrt(np.mean(np.square(floats(evidence.expected)))))
    quiet = np.sqrt(np.mean(np.square(rows), axis=1)) <= size
    return min(int(np.argmin(quiet)), MOST_FIRST)


def _sizes(reading: Reading, first: int, axes: int) -> Iterator[tuple[int, ...]]:
    if len(reading.space) == 1 and axes == 1:
        yield (reading.space[0] - first,)
        return
    yield from grids(tuple(size - first for size in reading.space) if first else reading.space, 0, axes)


def _ways(ours: Table, theirs: Table, out: tuple[int, ...], wanted: Floats) -> tuple[Way, Way] | None:
    """The two ways of resizing by which the sides differ as wanted, the reference's first."""
    if out == ours.grid.shape[1:] or min(out) < 1 or wanted.size < MANY:
        return None
    made = [_grid(ours, out, way) for way in WAYS]
    found = [_grid(theirs, out, way) for way in WAYS]
    pairs = [(misfit(b - a, wanted), i, j) for i, a in enumerate(made) for j, b in enumerate(found) if i != j]
    least = min(one[0] for one in pairs)
    if not least <= DOMINANT:
        return None
    # Ways that are the same at these sizes are called by their plainest name.
    _, own, way = min((one for one in pairs if one[0] <= 2 * least + 1e-12), key=lambda one: one[1:])
    return WAYS[own], WAYS[way]


def _grid(table: Table, out: tuple[int, ...], way: Way) -> Floats:
    """The rows of the grid alone."""
    return table.resized(out, way)[len(table.first) :]


HYPOTHESES: tuple[Hypothesis, ...] = (resized_addend,)
