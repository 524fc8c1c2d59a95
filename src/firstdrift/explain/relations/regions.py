"""Where in a tensor a difference lies, in words: which samples, tokens, heads or channels, and in what pattern."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ...core.traces import Array
from ..evidence import Evidence

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
    whole = (number for number in numbers if isinstance(number, int) and not isinstance(number, bool))
    return next((number for number in whole if number > 1), None)


def shape_of_difference(evidence: Evidence, predicted: Array) -> str:
    """Where the candidate differs from a prediction, as the end of a sentence; where it does so everywhere, how."""
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
        parts = [text for text in (_few_rows(square), _scattered(square), _same_rows(found, predicted)) if text][:1]
    if parts:
        return f"what is left lies in {' and '.join(parts)}"
    if bad.any():
        return ""
    agree = [text for text in _agreeing(evidence, square, predicted) if text]
    return f"nothing differs in {' and in '.join(agree)}" if agree else _everywhere(found, predicted)


def _leading(array: Array) -> Array:
    if array.size <= LARGEST or array.ndim == 0:
        return array
    return array[: max(1, LARGEST // max(array.size // array.shape[0], 1))]


def _by_axis(square: Floats) -> list[str]:
    names = AXES.get(square.ndim, tuple(f"axis {axis}" for axis in range(square.ndim)))
    texts = []
    for axis, name in enumerate(names):
        others = tuple(number for number in range(square.ndim) if number != axis)
        texts.append(_holders(square.sum(axis=others), name))
    return [text for text in texts if text]


def _by_head(evidence: Evidence, square: Floats) -> str:
    heads = heads_of(evidence)
    if heads is None or square.ndim not in (2, 3) or square.shape[-1] % heads:
        return ""
    return _holders(square.reshape(-1, heads, square.shape[-1] // heads).sum(axis=(0, 2)), "head")


def _held(energy: Floats) -> NDArray[np.intp]:
    """The few slices that hold the difference, in order; none where it takes many."""
    if energy.size < FEW_OF:
        return np.zeros(0, np.intp)
    order = np.argsort(energy)[::-1]
    count = int(np.searchsorted(np.cumsum(energy[order]), HELD * energy.sum())) + 1
    return np.sort(order[:count] if count * FEW_OF <= energy.size else order[:0])


def _holders(energy: Floats, name: str) -> str:
    """The few slices of an axis that hold the difference."""
    return _slices(name, held, energy.size) if len(held := _held(energy)) else ""


def _slices(name: str, at: NDArray[np.intp], size: int) -> str:
    return f"{name} {at[0]} of {size}" if len(at) == 1 else f"{name}s {_listed(at)} of {size}"


def _listed(held: NDArray[np.intp]) -> str:
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


def _few_rows(square: Floats) -> str:
    """The few vectors along the last axis that hold the difference, wherever they stand."""
    rows = square.sum(axis=-1)
    held = _held(rows.reshape(-1)) if rows.ndim > 1 else np.zeros(0, np.intp)
    if not len(held):
        return ""
    first = ", ".join(str(int(number)) for number in np.unravel_index(int(held[0]), rows.shape))
    return f"{len(held)} of {rows.size} rows, the first at [{first}]"


def _agreeing(evidence: Evidence, square: Floats, predicted: Array) -> list[str]:
    """The slices of each axis where nothing differs."""
    size = np.asarray(predicted, np.float64) ** 2
    allowed = (4 * max(evidence.noise, 1e-12)) ** 2
    names = AXES.get(square.ndim, tuple(f"axis {axis}" for axis in range(square.ndim)))
    texts = []
    for axis, name in enumerate(names):
        others = tuple(number for number in range(square.ndim) if number != axis)
        right = square.sum(axis=others) <= allowed * size.sum(axis=others)
        if right.any() and square.shape[axis] > 1:
            texts.append(_slices(name, np.flatnonzero(right), right.size))
    return texts


def _everywhere(found: Array, predicted: Array) -> str:
    """One plain fact of a difference that is everywhere: each row has its own factor, or how alike the two are."""
    a, b = (np.asarray(array, np.float64).reshape(-1, array.shape[-1]) for array in (predicted, found))
    whole = float(np.linalg.norm(b - a))
    last = "column" if found.ndim == 2 else "channel"
    for name, axis in (("row", 1), (last, 0)) if min(a.shape) >= FEW_OF else ():
        square = (a * a).sum(axis=axis, keepdims=True)
        factors = (a * b).sum(axis=axis, keepdims=True) / np.where(square > 0, square, 1.0)
        if float(np.linalg.norm(b - factors * a)) <= math.sqrt(1 - HELD) * whole:
            return f"every {name} is scaled by a factor of its own, from {factors.min():.3g} to {factors.max():.3g}"
        shift = (b - a).mean(axis=axis, keepdims=True)
        if float(np.linalg.norm(b - a - shift)) <= math.sqrt(1 - HELD) * whole:
            return f"every {name} is off by a number of its own, from {shift.min():.3g} to {shift.max():.3g}"
    x, y = a.ravel() - a.mean(), b.ravel() - b.mean()
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    alike = float(x @ y) / size if size > 0 else math.nan
    if not math.isfinite(alike):
        return ""
    return f"the difference is everywhere; found and expected correlate by {alike:.2g}"


def _same_rows(found: Array, predicted: Array) -> str:
    """Whether every row differs by the same vector."""
    rows = found.size // max(found.shape[-1], 1)
    if found.ndim < 2 or rows < FEW_OF:
        return ""
    error = (np.asarray(found, np.float64) - np.asarray(predicted, np.float64)).reshape(rows, -1)
    vector = error.mean(axis=0)
    left = float(np.linalg.norm(error - vector)) / max(float(np.linalg.norm(error)), math.ulp(0.0))
    return "the same vector in every row" if left <= math.sqrt(1 - HELD) else ""
