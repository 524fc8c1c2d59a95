"""Integers behind floats: values on a grid of equal steps, per tensor, channel or group, and grids that are shifted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import Floats, floats, limit
from .hypotheses import Finding, Hypothesis

GROUPS = (256, 128, 64, 32, 16)  # elements that share a step in common formats
LOOKED_AT = 64  # groups, spread over the tensor
MEMBERS = 2048  # elements looked at in each
FEWEST = 16  # members before a grid means anything
LEVELS = 255  # steps between the lowest and the highest value of eight bits
BITS = {3: 2, 15: 4, 255: 8}
STRAIGHT = 0.02  # of a step: how far values may lie beside the grid
SHARE = 0.95  # of the groups that must be on a grid


@dataclass(frozen=True, slots=True)
class Grouping:
    """A way of giving elements a common step: `rows` has one group a row."""

    name: str
    rows: Array
    others: Array  # the same of the other side


def quantised(evidence: Evidence) -> Iterator[Finding]:
    """found lies on a grid of few equal steps, expected does not, and they are about half a step apart at most."""
    if not _usable(evidence):
        return
    for grouping in _groupings(evidence.found, evidence.expected):
        found, expected = _some(grouping.rows), _some(grouping.others)
        steps, levels, good = grid(found)
        if good.mean() < SHARE or grid(expected)[2].mean() > 1 - SHARE:
            continue
        off = np.abs(found[good] - expected[good]) / steps[good][:, None]
        if (off <= 0.51).mean() < SHARE:
            continue
        bits = next(bits for most, bits in BITS.items() if levels[good].max() <= most)
        many = int(levels[good].max()) + 1
        said = f"found lies on a grid of {many} levels per {grouping.name}, as {bits}-bit integers do"
        yield Finding("quantisation", said, None, 1, {"bits": bits, "per": grouping.name}, 0.0)
        return


def zero_point(evidence: Evidence) -> Iterator[Finding]:
    """Both sides lie on the same grid, and found is a whole number of steps away, the same in every group."""
    if evidence.found.dtype.name in ("int8", "uint8"):
        yield from _shifted_integers(evidence)
    if not _usable(evidence):
        return
    for grouping in _groupings(evidence.expected, evidence.found):
        expected, found = floats(grouping.rows), floats(grouping.others)
        steps, _, good = grid(_some(expected))
        if good.mean() < SHARE:
            continue
        shift = (found - expected).mean(axis=1)
        chosen = shift[_chosen(len(expected))]
        times = np.round(chosen[good] / steps[good])
        typical = float(np.median(times))
        if (
            typical == 0
            or (times == typical).mean() < SHARE
            or (np.abs(chosen[good] / steps[good] - times) > STRAIGHT).any()
        ):
            continue
        predicted = _ungrouped(expected + shift[:, None], grouping, evidence)
        said = f"found is {typical:+.0f} steps of the quantisation grid away, per {grouping.name}"
        yield Finding("zero-point", said, predicted, 1, {"steps": int(typical), "per": grouping.name})
        return


def grid(rows: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """The step of the grid that each row lies on, the steps from its lowest value to its highest, and if it does."""
    ranked = np.sort(rows, axis=1)
    gaps = np.diff(ranked, axis=1)
    span = ranked[:, -1] - ranked[:, 0]
    apart = gaps > (span / (4 * LEVELS))[:, None]  # smaller gaps are rounding
    step = np.where(apart, gaps, np.inf).min(axis=1, initial=np.inf)
    levels = np.round(span / step)
    step = np.where(levels > 0, span / np.maximum(levels, 1), np.inf)
    away = (ranked - ranked[:, :1]) / step[:, None]
    off = np.abs(away - np.round(away)).max(axis=1, initial=0.0)
    good = np.isfinite(step) & (levels >= 2) & (levels <= LEVELS) & (off <= STRAIGHT)
    return step, levels, good


def _usable(evidence: Evidence) -> bool:
    found = evidence.found
    return (
        bool(np.issubdtype(found.dtype, np.floating)) and found.size >= FEWEST and limit(evidence) < STRAIGHT / LEVELS
        and bool(np.isfinite(found).all()) and bool(np.isfinite(evidence.expected).all())
    )  # fmt: skip


def _groupings(array: Array, other: Array) -> Iterator[Grouping]:
    """By tensor, by channel (first or last axis) and by group, where groups are large enough."""
    yield Grouping("tensor", array.reshape(1, -1), other.reshape(1, -1))
    if array.ndim < 2:
        return
    for axis in (0, array.ndim - 1):
        if array.shape[axis] > 1 and array.size // array.shape[axis] >= FEWEST:
            a, b = (np.moveaxis(one, axis, 0).reshape(array.shape[axis], -1) for one in (array, other))
            yield Grouping(f"channel of axis {axis}", a, b)
    for size in GROUPS:
        if array.shape[-1] % size == 0 and array.shape[-1] > size:
            yield Grouping(f"group of {size}", array.reshape(-1, size), other.reshape(-1, size))


def _chosen(count: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, count - 1, LOOKED_AT).astype(np.intp))


def _some(rows: Array) -> Floats:
    return floats(rows[_chosen(len(rows)), :MEMBERS])


def _ungrouped(rows: Floats, grouping: Grouping, evidence: Evidence) -> Floats:
    shape = evidence.expected.shape
    if grouping.name == f"channel of axis {len(shape) - 1}":
        return np.moveaxis(rows.reshape(shape[-1], *shape[:-1]), 0, -1)
    return rows.reshape(shape)


def _shifted_integers(evidence: Evidence) -> Iterator[Finding]:
    found, expected = evidence.found.astype(np.int64), evidence.expected.astype(np.int64)
    difference = found - expected
    shift = int(np.median(difference)) if difference.size else 0
    if shift and (difference == shift).mean() >= SHARE:
        # beyond the range that the candidate uses, which may be narrower than its dtype's, integers stay at its end
        predicted = np.clip(expected + shift, found.min(), found.max())
        yield Finding("zero-point", f"every integer is off by {shift:+d}", predicted, 1, {"steps": shift})


HYPOTHESES: tuple[Hypothesis, ...] = (quantised, zero_point)
