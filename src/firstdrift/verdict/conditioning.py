"""Parts of a tensor that an operation rounds much more than its others: rows that were masked altogether, channels
that hardly vary.

Their noise is theirs alone. Taken for that of the whole tensor, it would excuse any error of all other parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from ..traces import Array
from .noise import WORST_OF_MANY
from .parts import LARGEST

Floats = NDArray[np.float64]

STRONGLY = 16.0  # times the noise that a part may well have, the ill-conditioned ones have
FEW, SHARE = 4, 0.25  # parts, and of all parts, that are not so little noisy by chance


@dataclass(frozen=True, slots=True)
class Apart:
    """Of the well-conditioned parts of a tensor: distances from what was expected and from each other's rounding, of
    all of them and of the worst one, relative to the whole tensor."""

    error: float
    noise: float
    worst: float
    worst_noise: float


def well_conditioned(
    expected: Array, found: Array, rounded: tuple[Array, Array], level: float | None, *, by_chance: bool
) -> list[Apart]:
    """The well-conditioned rows of a tensor, and its well-conditioned columns, where some others are none.

    `rounded` are two computations of the tensor that differ by rounding. A part is well-conditioned if they differ by
    no more than `level` in it, relative to the whole tensor, or as much as in most parts if there is none. `by_chance`
    says that `found` was rounded too, so that both sides of `rounded` may agree in an ill-conditioned part by chance.
    """
    arrays = expected, found, *rounded
    if expected.ndim < 2 or not 0 < expected.size <= LARGEST or any(one.shape != expected.shape for one in arrays):
        return []
    if any(one.dtype.kind not in "fV" for one in arrays):
        return []
    x, z, exact, short = (np.asarray(one, np.float64).reshape(-1, expected.shape[-1]) for one in arrays)
    finite = np.isfinite(x) & np.isfinite(z) & np.isfinite(exact) & np.isfinite(short)
    size = float(np.sum(np.where(finite, x, 0.0) ** 2))
    errors, noises = (np.where(finite, b - a, 0.0) ** 2 for a, b in ((x, z), (exact, short)))
    return [] if not size else list(_each(errors / size, noises / size, level, by_chance))


def _each(errors: Floats, noises: Floats, level: float | None, by_chance: bool) -> Iterator[Apart]:
    for axis in (1, 0):
        error, noise = errors.sum(axis), noises.sum(axis)
        whole = sqrt(noise.size)  # a part's error, times this, is on the scale of the whole tensor
        usual = float(np.median(np.sqrt(noise))) * whole if level is None else level
        well = np.sqrt(noise) * whole <= WORST_OF_MANY * usual
        ill = ~well
        if not (well.any() and ill.any()):
            continue
        strongly = sqrt(float(noise[ill].mean())) * whole >= STRONGLY * WORST_OF_MANY * usual
        if by_chance and not (strongly and int(well.sum()) >= max(FEW, SHARE * well.size)):
            continue
        yield Apart(
            sqrt(float(error[well].sum())), sqrt(float(noise[well].sum())),
            sqrt(float(error[well].max())) * whole, sqrt(float(noise[well].max())) * whole,
        )  # fmt: skip
