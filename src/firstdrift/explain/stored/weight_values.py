"""Weights whose numbers are others: rounded, quantised, scaled, shifted by one, never filled, lacking a term."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..evidence import Evidence
from ..one_program.agreement import Floats, distance, factor, floats, limit, rounded
from ..relations.hypotheses import Finding, Hypothesis
from .weight_layouts import SCREEN, is_weight

DENORMAL = 1e-37  # no weight is meant to be as small as this
LARGEST_RANK = 64
LEAST_UNORDERED = 8  # numbers, below which the same ones in another order may be chance


def coarser_dtype(evidence: Evidence) -> Iterator[Finding]:
    """Every weight rounded to a coarser floating-point format."""
    if not is_weight(evidence):
        return
    import ml_dtypes

    expected, found = floats(evidence.expected), floats(evidence.found)
    formats = {
        "bfloat16": ml_dtypes.bfloat16, "float16": np.float16,
        "float8 e4m3": ml_dtypes.float8_e4m3fn, "float8 e5m2": ml_dtypes.float8_e5m2,
    }  # fmt: skip
    part, wanted = expected.ravel()[:SCREEN], found.ravel()[:SCREEN]
    with np.errstate(all="ignore"):
        for name, dtype in formats.items():
            if np.array_equal(part.astype(np.float32).astype(dtype).astype(np.float64), wanted):
                predicted = expected.astype(np.float32).astype(dtype).astype(np.float64)
                yield Finding("dtype-rounding", f"the weights are rounded to {name}", predicted, 0, {"dtype": name})
        if np.array_equal(_cut(part), wanted):
            sentence = "the weights are cut off to bfloat16, not rounded"
            yield Finding("dtype-rounding", sentence, _cut(expected), 0, {"dtype": "bfloat16", "rounding": "down"})


def never_filled(evidence: Evidence) -> Iterator[Finding]:
    """Zeros, ones or denormals where the reference has weights: all of them, or whole leading slices."""
    if not is_weight(evidence):
        return
    expected, found = floats(evidence.expected), floats(evidence.found)
    first = float(found.flat[0])
    if np.all(found == first) and first in (0.0, 1.0):
        yield Finding("uninitialised", f"every weight is {first:g}", found, 0, {"value": first})
        return
    with np.errstate(all="ignore"):
        tiny = (np.abs(found) < DENORMAL) & (found != 0) & (np.abs(expected) >= DENORMAL)
    if np.count_nonzero(tiny) > found.size // 2:
        yield Finding(
            "uninitialised", "the weights are denormal numbers: memory that was never written", None, residual=0.0
        )
    rows = found.reshape(len(found), -1)
    empty = ~rows.any(1) & expected.reshape(len(found), -1).any(1)
    if rows.shape[1] > 1 and empty.any() and not empty.all():
        predicted = expected.copy()
        predicted[empty] = 0
        sentence = f"{np.count_nonzero(empty)} of {len(rows)} rows are zero"
        yield Finding(
            "uninitialised", sentence, predicted, int(np.count_nonzero(np.diff(empty))), {"rows": int(empty.sum())}
        )


def plus_one(evidence: Evidence) -> Iterator[Finding]:
    """A norm's weight stored as w on one side and as 1 + w on the other."""
    if is_weight(evidence) and evidence.expected.ndim == 1:
        for sign, word in ((1.0, "one more"), (-1.0, "one less")):
            sentence = f"every weight is {word} than it should be: 1 + w on one side, w on the other"
            yield Finding("norm-plus-one", sentence, floats(evidence.expected) + sign, 0, {"offset": sign})


def scaled(evidence: Evidence) -> Iterator[Finding]:
    """All weights by one factor."""
    if is_weight(evidence) and evidence.found.size >= 4:
        times = factor(evidence.expected, evidence.found)
        if np.isfinite(times) and times:
            value = rounded(times, limit(evidence))
            predicted = floats(evidence.expected) * value
            yield Finding(
                "scale", f"the weights are {value:.6g} times what they should be", predicted, 1, {"factor": value}
            )


def low_rank(evidence: Evidence) -> Iterator[Finding]:
    """A difference of low rank: an adapter that was merged on one side only, or with another factor."""
    if not is_weight(evidence) or evidence.expected.ndim < 2:
        return
    difference = (floats(evidence.found) - floats(evidence.expected)).reshape(len(evidence.found), -1)
    rows, columns = difference.shape
    most = min(LARGEST_RANK, rows // 4, columns // 4)
    if most < 1 or not np.isfinite(difference).all() or _sparse(difference):
        return
    directions = np.random.default_rng(11).standard_normal((columns, most + 8))
    basis, sizes, _ = np.linalg.svd(difference @ directions, full_matrices=False)
    scale = float(np.linalg.norm(floats(evidence.expected)))
    floor = max(limit(evidence) * scale * np.sqrt(most), sizes[0] * 1e-6)  # what noise adds in every direction
    rank = int(np.count_nonzero(sizes > floor))
    if 1 <= rank <= most:
        basis = basis[:, :rank]
        term = basis @ (basis.T @ difference)
        if distance(term, difference) <= 0.1:
            sentence = f"a term of rank {rank} is missing, extra or scaled otherwise, as of an adapter not merged"
            predicted = floats(evidence.expected) + term.reshape(evidence.found.shape)
            yield Finding("missing-term", sentence, predicted, rank * (rows + columns), {"rank": rank})


def unordered(evidence: Evidence) -> Iterator[Finding]:
    """The same numbers, bit for bit, in an order without a pattern."""
    if not is_weight(evidence) or evidence.found.size < LEAST_UNORDERED:
        return
    expected, found = floats(evidence.expected), floats(evidence.found)
    if (
        expected.min() != found.min()
        or expected.max() != found.max()
        or abs(expected.sum() - found.sum()) > 1e-9 * (np.abs(expected).sum())
    ):
        return  # sorting is dear
    if np.array_equal(np.sort(expected, None), np.sort(found, None)):
        sentence = "the same weights stand in another order, which has no simple pattern"
        yield Finding("permutation", sentence, None, found.size - 1, residual=0.0)


def _sparse(difference: Floats) -> bool:
    """Whether some rows or columns do not differ at all: what differs in a few rows has a low rank for nothing."""
    return bool(np.mean(difference.any(0)) < 0.9 or np.mean(difference.any(1)) < 0.9)


def _cut(values: Floats) -> Floats:
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


HYPOTHESES: tuple[Hypothesis, ...] = (coarser_dtype, never_filled, plus_one, scaled, low_rank, unordered)
