"""What becomes of a tensor, and of its noise, on its way to the next: it is handed on as it is, or times a factor; and
near its target a loss makes an output's noise as large as what is left to learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..traces import Array
from .parts import LARGEST

MOSTLY = 0.5  # of the error that may be left once the output's own is taken out


def multiple_of_error(gradients: tuple[Array, Array], outputs: tuple[Array, Array], limit: float) -> float | None:
    """The one factor by which the error of an output explains that of its loss's gradient; None if it does not.

    That is so for squared errors: whatever else a loss does wrong is no multiple of the output's rounding errors.
    """
    if gradients[0].shape != outputs[0].shape or not 1 < outputs[0].size <= LARGEST:
        return None
    if any(array.dtype.kind not in "fV" for array in (*gradients, *outputs)):
        return None
    ours, theirs, x, z = (np.asarray(array, np.float64) for array in (*gradients, *outputs))
    error, source = theirs - ours, z - x
    energy = float(np.sum(source**2))
    if not np.isfinite(energy) or energy == 0 or not np.isfinite(error).all():
        return None
    factor = float(np.sum(error * source)) / energy
    left = float(np.linalg.norm(error - factor * source))
    if left > limit * float(np.linalg.norm(ours)) or left > MOSTLY * float(np.linalg.norm(error)):
        return None
    return factor


def follows_from_outputs(
    losses: tuple[Array, Array], read: Sequence[tuple[tuple[Array, Array], tuple[Array, Array]]], limit: float
) -> bool:
    """Whether two losses differ by what their gradients say of how their outputs differ; `read` are both sides'
    gradients and outputs, of everything that the loss reads."""
    if losses[0].size != 1 or not read:
        return False
    if any(gradients[0].shape != outputs[0].shape or outputs[0].size > LARGEST for gradients, outputs in read):
        return False
    expected = 0.0
    for gradients, outputs in read:
        if any(array.dtype.kind not in "fV" for array in (*gradients, *outputs)):
            return False
        ours, theirs, x, z = (np.asarray(array, np.float64) for array in (*gradients, *outputs))
        expected += float(np.sum((ours + theirs) / 2 * (z - x)))
    loss, other = (float(np.asarray(value, np.float64).reshape(())) for value in losses)
    return abs(other - loss - expected) <= limit * abs(loss)


def one_factor(seen: Array, raw: Array) -> tuple[float, float] | None:
    """The one number by which a tensor comes of another, and what that leaves, relative to it; None if none does."""
    if seen.shape != raw.shape or seen.size > LARGEST or any(array.dtype.kind not in "fV" for array in (seen, raw)):
        return None
    y, x = (np.asarray(array, np.float64).ravel() for array in (seen, raw))
    energy, size = float(x @ x), float(np.linalg.norm(y))
    if not (np.isfinite(energy) and np.isfinite(size)) or energy == 0 or size == 0:
        return None
    factor = float(x @ y) / energy
    return factor, float(np.linalg.norm(y - factor * x)) / size


def is_handed_on(values: tuple[Array, Array], made: tuple[Array, Array]) -> bool:
    """Whether both sides took their values from another tensor, unchanged."""
    return all(np.array_equal(value.ravel(), source.ravel()) for value, source in zip(values, made, strict=True))
