"""Coarser numbers: rounded to a shorter float or to a grid of integers, operands that were, grids that are shifted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import UNIT_ROUNDOFF, numpy_dtype
from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import Floats, floats, limit
from .hypotheses import Finding, Hypothesis
from .screening import positions, sampled

DTYPES = ("f16", "bf16", "f8e4m3fn", "f8e5m2")
ON_GRID = 0.999  # of the elements of a tensor that was stored so
WITHIN = 0.99  # of the elements that one rounding explains
RUNGS = {"operands": 0.59, "operands and result": 0.72}  # times the unit roundoff: what a matrix product shows
RUNG_WIDTH = 0.25
PRODUCTS = ("Linear", "Conv", "MatMul", "Gemm", "Bilinear")
FEWEST = 256  # elements before their scatter can be judged
SURPRISE = 6.0  # standard deviations that chance does not reach
TIES = 0.1  # of the integers may differ by one where only ties round otherwise
SMALL_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")


def stored_coarser(evidence: Evidence) -> Iterator[Finding]:
    """found lies on the grid of a shorter float, expected does not, and they are half a step apart at most."""
    if not np.issubdtype(evidence.found.dtype, np.floating):
        return
    at = positions(evidence.expected.size)
    e, f = sampled(evidence.expected, at), sampled(evidence.found, at)
    for dtype in DTYPES:
        if f.size < 4 or _on_grid(f, dtype) < ON_GRID or _on_grid(e, dtype) > 0.5:
            continue
        is_cut = bool((np.abs(f) <= np.abs(e) * (1 + limit(evidence))).all())  # towards zero, everywhere
        steps, how = (1.0, "cut off") if is_cut else (0.5, "rounded")
        if (~_one_rounding(evidence, e, f, dtype, steps)).mean() > 1 - WITHIN:
            continue
        expected, found = floats(evidence.expected), floats(evidence.found)
        predicted = np.where(_one_rounding(evidence, expected, found, dtype, steps), found, expected)
        size = float(np.linalg.norm(found[np.isfinite(found)]))
        left = float(np.linalg.norm((found - predicted)[np.isfinite(found)])) / size if size > 0 else math.inf
        yield Finding("dtype-rounding", f"found is expected {how} to {dtype}", None, 0, {"dtype": dtype}, left)
        return


def computed_coarser(evidence: Evidence) -> Iterator[Finding]:
    """The difference is noise, of the size that operands of a shorter float give a matrix product."""
    computed = evidence.site.phase in ("fwd", "agrad", "grad")
    if not computed or not evidence.op.startswith(PRODUCTS) or evidence.expected.size < FEWEST:
        return
    at = positions(evidence.expected.size)
    e, f = sampled(evidence.expected, at), sampled(evidence.found, at)
    size = float(np.linalg.norm(e))
    error = float(np.linalg.norm(f - e)) / size if size > 0 else math.nan
    for dtype in DTYPES:
        for what, times in RUNGS.items():
            rung = times * UNIT_ROUNDOFF[dtype]
            if rung > 2 * limit(evidence) and abs(error / rung - 1) <= RUNG_WIDTH and _patternless(evidence):
                said = f"the difference is patternless and as large ({error:.2g}) as {what} in {dtype} make it"
                yield Finding("dtype-rounding", said, None, 1, {"dtype": dtype, "error": error}, limit(evidence))
                return


def rounding_mode(evidence: Evidence) -> Iterator[Finding]:
    """A few small integers differ by one."""
    if evidence.found.dtype.name not in SMALL_INTEGERS or evidence.expected.size < FEWEST // 16:
        return
    difference = evidence.found.astype(np.int64) - evidence.expected.astype(np.int64)
    off = difference != 0
    if not off.any() or np.abs(difference).max() > 1 or off.mean() > TIES:
        return
    ups = float((difference > 0).sum() / off.sum())
    said = f"{off.mean():.2%} of the integers are off by one, {ups:.0%} of them upwards: ties are rounded otherwise"
    yield Finding("rounding-mode", said, None, 1, {"share": float(off.mean()), "upwards": ups}, 0.0)


def _on_grid(values: Floats, dtype: str) -> float:
    usable = values[np.isfinite(values) & (values != 0.0)]
    return float((_cast(usable, dtype) == usable).mean()) if usable.size else 1.0


def _cast(values: Floats, dtype: str) -> Floats:
    return np.asarray(values.astype(numpy_dtype(dtype)), np.float64)


def _one_rounding(evidence: Evidence, expected: Floats, found: Floats, dtype: str, steps: float) -> NDArray[np.bool_]:
    """Where the difference is at most so many steps of a dtype, and what noise adds to it."""
    step = 2 * UNIT_ROUNDOFF[dtype] * np.exp2(np.floor(np.log2(np.maximum(np.abs(expected), 1e-300))))
    smallest = {"f16": 2.0**-24, "bf16": 2.0**-133, "f8e4m3fn": 2.0**-9, "f8e5m2": 2.0**-16}[dtype]
    usual = math.sqrt(float(np.mean(np.square(expected[np.isfinite(expected)])))) if expected.size else 0.0
    slack = limit(evidence) * np.maximum(np.abs(expected), usual)
    return np.asarray((np.abs(found - expected) <= steps * np.maximum(step, smallest) + slack) | (found == expected))


def _patternless(evidence: Evidence) -> bool:
    """Whether a difference looks like chance: no mean, no share of expected, no slice that stands out, no outliers."""
    expected, found = _leading(evidence.expected), _leading(evidence.found)
    error = floats(found) - floats(expected)
    count, flat = error.size, error.reshape(-1)
    usual = float(np.linalg.norm(flat)) / math.sqrt(count)
    if not math.isfinite(usual) or usual == 0.0:
        return False
    other = floats(expected).reshape(-1)
    aligned = float(flat @ other) / (float(np.linalg.norm(flat)) * float(np.linalg.norm(other)))
    tailed = float(np.mean((flat / usual) ** 4))
    if abs(aligned) > SURPRISE / math.sqrt(count) or abs(flat.mean()) > SURPRISE * usual / math.sqrt(count):
        return False
    if tailed > 2 * 3.0 + SURPRISE * math.sqrt(96 / count):
        return False
    for axis in range(error.ndim):
        others = tuple(number for number in range(error.ndim) if number != axis)
        mean, per_slice = error.mean(axis=others), count / error.shape[axis]
        if (
            float(np.mean(np.square(mean)))
            > (1 + SURPRISE * math.sqrt(2 / error.shape[axis])) * 2 * usual**2 / per_slice
        ):
            return False
    return True


def _leading(array: Array) -> Array:
    most = 1 << 20
    return array if array.size <= most or not array.ndim else array[: max(1, most * array.shape[0] // array.size)]


GROUPS = (256, 128, 64, 32, 16)  # elements that share a step in common formats
LOOKED_AT = 64  # groups, spread over the tensor
MEMBERS = 2048  # elements looked at in each
MEMBERS_AT_LEAST = 16  # members before a grid means anything
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
    if not np.issubdtype(found.dtype, np.floating) or found.size < MEMBERS_AT_LEAST:
        return False
    is_finite = bool(np.isfinite(found).all() and np.isfinite(evidence.expected).all())
    return is_finite and limit(evidence) < STRAIGHT / LEVELS


def _groupings(array: Array, other: Array) -> Iterator[Grouping]:
    """By tensor, by channel (first or last axis) and by group, where groups are large enough."""
    yield Grouping("tensor", array.reshape(1, -1), other.reshape(1, -1))
    if array.ndim < 2:
        return
    for axis in (0, array.ndim - 1):
        if array.shape[axis] > 1 and array.size // array.shape[axis] >= MEMBERS_AT_LEAST:
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


HYPOTHESES: tuple[Hypothesis, ...] = (stored_coarser, rounding_mode, computed_coarser, quantised, zero_point)
