"""Where in a tensor a difference lies, in words: which samples, tokens, heads or channels, and in what pattern."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..traces import Array
from .evidence import Evidence

HELD = 0.99  # of the squared difference: what holds this much holds the difference
FEW_OF = 4  # a region is worth naming where it is at most this part (one in four) of its axis
NAMED = 6  # indices listed one by one; more are given as a range or counted
LARGEST = 1 << 20  # elements looked at; of a larger tensor, leading slices

AXES = {
    1: ("element",),
    2: ("row", "column"),
    3: ("sample", "position", "channel"),
    4: ("sample", "channel or head", "row", "column"),
    5: ("sample", "channel", "plane", "row", "column"),
}
HEADS = ("heads", "num_heads", "n_heads", "num_attention_heads", "n_head")

Floats = NDArray[np.float64]


def heads_of(evidence: Evidence) -> int | None:
    """The number of attention heads that the reference recorded."""
    numbers = (evidence.attrs.get(key) for key in HEADS)
    return next((one for one in numbers if isinstance(one, int) and not isinstance(one, bool) and one > 1), None)


def shape_of_difference(evidence: Evidence, predicted: Array) -> str:
    """Where the candidate differs from a prediction, as the end of a sentence; empty where it does so everywhere."""
    found, predicted = _leading(evidence.found), _leading(predicted)
    with np.errstate(all="ignore"):
        square = (np.asarray(found, np.float64) - np.asarray(predicted, np.float64)) ** 2
    bad = ~np.isfinite(square)
    if bad.any():  # only what is not finite matters then
        square = bad.astype(np.float64)
    total = float(square.sum())
    if total == 0.0 or found.size < 2:
        return ""
    parts = [text for text in (_by_head(evidence, square), *_by_axis(square)) if text]
    pattern = _triangle(square)
    if pattern:
        parts = [pattern]
    if not parts:
        parts = [text for text in (_scattered(square), _same_rows(found, predicted)) if text]
    return f"what is left lies in {' and '.join(parts)}" if parts else ""


def _leading(array: Array) -> Array:
    if array.size <= LARGEST or array.ndim == 0:
        return array
    return array[: max(1, LARGEST // max(array.size // array.shape[0], 1))]


def _by_axis(square: Floats) -> list[str]:
    names = AXES.get(square.ndim, tuple(f"axis {axis}" for axis in range(square.ndim)))
    texts = []
    for axis, name in enumerate(names):
        others = tuple(one for one in range(square.ndim) if one != axis)
        texts.append(_holders(square.sum(axis=others), name))
    return [text for text in texts if text]


def _by_head(evidence: Evidence, square: Floats) -> str:
    heads = heads_of(evidence)
    if heads is None or square.ndim not in (2, 3) or square.shape[-1] % heads:
        return ""
    return _holders(square.reshape(-1, heads, square.shape[-1] // heads).sum(axis=(0, 2)), "head")


def _holders(energy: Floats, name: str) -> str:
    """The few slices of an axis that hold the difference."""
    size = energy.size
    if size < FEW_OF:
        return ""
    order = np.argsort(energy)[::-1]
    count = int(np.searchsorted(np.cumsum(energy[order]), HELD * energy.sum())) + 1
    if count * FEW_OF > size:
        return ""
    held = np.sort(order[:count])
    if count == 1:
        return f"{name} {held[0]} of {size}"
    return f"{name}s {_listed(held, size)} of {size}"


def _listed(held: NDArray[np.intp], size: int) -> str:
    steps = np.diff(held)
    if (steps == 1).all():
        return f"{held[0]} to {held[-1]}"
    if len(held) > 2 and (steps == steps[0]).all():
        return f"{held[0]}, {held[1]}, ... (every {steps[0]}th)"
    if len(held) <= NAMED:
        return ", ".join(str(one) for one in held)
    return f"{held[0]}, {held[1]}, ... ({len(held)} of them)"


def _triangle(square: Floats) -> str:
    """The part of a matrix of queries and keys: above, on or below its diagonal."""
    if square.ndim < 2 or square.shape[-1] != square.shape[-2] or square.shape[-1] < FEW_OF:
        return ""
    energy = square.reshape(-1, *square.shape[-2:]).sum(axis=0)
    total = energy.sum()
    diagonal = float(np.trace(energy))
    if diagonal >= HELD * total:
        return "the diagonal of the last two axes"
    if np.triu(energy, 1).sum() >= HELD * total:
        return "what is above the diagonal of the last two axes"
    if np.tril(energy, -1).sum() >= HELD * total:
        return "what is below the diagonal of the last two axes"
    return ""


def _scattered(square: Floats) -> str:
    flat = square.reshape(-1)
    most = max(1, flat.size // (FEW_OF * FEW_OF))
    top = np.sort(np.partition(flat, -most)[-most:])[::-1] if most < flat.size else np.sort(flat)[::-1]
    reached = np.cumsum(top) >= HELD * flat.sum()
    if not reached.any():
        return ""
    return f"{int(np.argmax(reached)) + 1} of {flat.size} elements, scattered"


def _same_rows(found: Array, predicted: Array) -> str:
    """Whether every row differs by the same vector."""
    rows = found.size // max(found.shape[-1], 1)
    if found.ndim < 2 or rows < FEW_OF:
        return ""
    error = (np.asarray(found, np.float64) - np.asarray(predicted, np.float64)).reshape(rows, -1)
    vector = error.mean(axis=0)
    left = float(np.linalg.norm(error - vector)) / max(float(np.linalg.norm(error)), math.ulp(0.0))
    return "the same vector in every row" if left <= math.sqrt(1 - HELD) else ""
