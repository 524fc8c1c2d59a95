"""A second opinion on every number: one element at a time, exact sums, nothing shared with the package."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def values_of(array: Array) -> list[float]:
    return [float(x) for x in array.reshape(-1)]


def ordered(array: Array) -> list[int]:
    """Position of each float among all floats of its dtype, zero in the middle."""
    width = 8 * array.itemsize
    words = [int(x) for x in np.ascontiguousarray(array).reshape(-1).view(f"u{array.itemsize}")]
    half = 1 << (width - 1)
    return [word if word < half else half - word for word in words]


def compare(reference: Array, candidate: Array) -> dict[str, Any]:
    """Every cheap number of a pair of one float dtype."""
    r, c = values_of(reference), values_of(candidate)
    both = [(i, a, b) for i, (a, b) in enumerate(zip(r, c, strict=True)) if math.isfinite(a) and math.isfinite(b)]
    gaps = [abs(b - a) for _, a, b in both]
    largest = max(gaps, default=0.0)
    index = next((i for (i, _, _), gap in zip(both, gaps, strict=True) if gap == largest), None) if largest else None
    rr, cc = math.fsum(a * a for _, a, _ in both), math.fsum(b * b for _, _, b in both)
    dd, dot = math.fsum((b - a) ** 2 for _, a, b in both), math.fsum(a * b for _, a, b in both)
    mean = math.fsum(a for _, a, _ in both) / max(1, len(both))
    std = math.sqrt(math.fsum((a - mean) ** 2 for _, a, _ in both) / max(1, len(both)))
    kinds = [[_kind(x) for x in side] for side in (r, c)]
    words = [array.reshape(-1).view(f"u{array.itemsize}").tolist() for array in (reference, candidate)]
    return {
        "count": len(r),
        "compared": len(both),
        "differing": sum(a != b for a, b in zip(*words, strict=True)),
        "nan_reference": kinds[0].count("nan"),
        "nan_candidate": kinds[1].count("nan"),
        "inf_reference": kinds[0].count("inf") + kinds[0].count("-inf"),
        "inf_candidate": kinds[1].count("inf") + kinds[1].count("-inf"),
        "nonfinite_mismatches": sum(a != b for a, b in zip(*kinds, strict=True)),
        "nonfinite_mismatch_index": next((i for i, (a, b) in enumerate(zip(*kinds, strict=True)) if a != b), None),
        "max_abs": largest,
        "max_abs_index": index,
        "reference_at_max": None if index is None else r[index],
        "candidate_at_max": None if index is None else c[index],
        "max_rel": max((abs(b - a) / max(abs(a), 1e-12) for _, a, b in both), default=None),
        "max_over_std": None if not both else largest / std if std else (math.inf if largest else 0.0),
        "rel_l2": None if not both else math.sqrt(dd) / math.sqrt(rr) if rr else (math.inf if dd else 0.0),
        "rms": math.sqrt(dd / len(both)) if both else None,
        "cosine": dot / math.sqrt(rr) / math.sqrt(cc) if rr and cc else None,
        "norm_ratio": math.sqrt(cc) / math.sqrt(rr) if rr else None,
        "mean_difference": math.fsum(b - a for _, a, b in both) / len(both) if both else None,
        "norm_reference": math.sqrt(rr),
        "norm_candidate": math.sqrt(cc),
    }


def _kind(x: float) -> str:
    return "nan" if math.isnan(x) else "finite" if math.isfinite(x) else "inf" if x > 0 else "-inf"


def ulp_distances(reference: Array, candidate: Array) -> list[int]:
    """Distances at the positions finite on both sides."""
    finite = [
        math.isfinite(a) and math.isfinite(b) for a, b in zip(*map(values_of, (reference, candidate)), strict=True)
    ]
    pairs = zip(ordered(reference), ordered(candidate), finite, strict=True)
    return [abs(a - b) for a, b, both in pairs if both]


def sign_flips(reference: Array, candidate: Array) -> int:
    return sum(
        (a < 0 < b) or (b < 0 < a)
        for a, b in zip(values_of(reference), values_of(candidate), strict=True)
        if math.isfinite(a) and math.isfinite(b)
    )


def region_errors(reference: Array, candidate: Array, matrix: tuple[int, int]) -> dict[str, dict[int, float]]:
    """Error of every row, column and block with something to compare, by the flat index of its start."""
    rows, columns = matrix
    r, c = (np.array(values_of(side)).reshape(matrix) for side in (reference, candidate))
    both = np.isfinite(r) & np.isfinite(c)
    with np.errstate(invalid="ignore"):
        squares = np.where(both, c - r, 0.0) ** 2
    mean = math.fsum((np.where(both, r, 0.0) ** 2).reshape(-1)) / max(1, int(both.sum()))
    cuts = {
        "row": [(i, slice(i, i + 1), slice(None)) for i in range(rows)],
        "column": [(j, slice(None), slice(j, j + 1)) for j in range(columns)],
        "block": [(i, slice(i, i + 64), slice(j, j + 64)) for i in range(0, rows, 64) for j in range(0, columns, 64)],
    }
    errors: dict[str, dict[int, float]] = {}
    for kind, spans in cuts.items():
        errors[kind] = {}
        for _, i, j in spans:
            count = int(both[i, j].sum())
            if count:
                error = math.fsum(squares[i, j].reshape(-1)) / count
                start = (i.start or 0) * columns + (j.start or 0)
                errors[kind][start] = math.sqrt(error / mean) if mean else (math.inf if error else 0.0)
    return errors
