"""Coarser numbers: values rounded to a shorter float, operands that were, and integers that round otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
        off = ~_one_rounding(evidence, e, f, dtype)
        if off.mean() > 1 - WITHIN:
            continue
        expected, found = floats(evidence.expected), floats(evidence.found)
        off = ~_one_rounding(evidence, expected, found, dtype)
        predicted = np.where(off, expected, found)
        size = float(np.linalg.norm(found[np.isfinite(found)]))
        left = float(np.linalg.norm((found - predicted)[np.isfinite(found)])) / size if size > 0 else math.inf
        yield Finding("dtype-rounding", f"found is expected rounded to {dtype}", None, 0, {"dtype": dtype}, left)
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


def _one_rounding(evidence: Evidence, expected: Floats, found: Floats, dtype: str) -> NDArray[np.bool_]:
    """Where the difference is at most half a step of a dtype, and what noise adds to it."""
    step = 2 * UNIT_ROUNDOFF[dtype] * np.exp2(np.floor(np.log2(np.maximum(np.abs(expected), 1e-300))))
    smallest = {"f16": 2.0**-24, "bf16": 2.0**-133, "f8e4m3fn": 2.0**-9, "f8e5m2": 2.0**-16}[dtype]
    usual = math.sqrt(float(np.mean(np.square(expected[np.isfinite(expected)])))) if expected.size else 0.0
    slack = limit(evidence) * np.maximum(np.abs(expected), usual)
    return np.asarray((np.abs(found - expected) <= 0.5 * np.maximum(step, smallest) + slack) | (found == expected))


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


HYPOTHESES: tuple[Hypothesis, ...] = (stored_coarser, rounding_mode, computed_coarser)
