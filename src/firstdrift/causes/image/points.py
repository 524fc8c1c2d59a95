"""Some points of an image: what a sliding window sees there, without computing the whole output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evidence import Evidence
from ..formulas import Axis
from ..variants import telling

Floats = NDArray[np.float64]

COUNT = 256  # points to try variants on


@dataclass(frozen=True, slots=True)
class Points:
    """Positions in a tensor (batch, channels, *space): the sample, and the place along each axis of space."""

    samples: NDArray[np.intp]
    places: tuple[NDArray[np.intp], ...]

    def cut(self, tensor: Any) -> Floats:
        """All channels at the points: (points, channels)."""
        at: Any = (self.samples, slice(None), *self.places)
        return np.asarray(tensor[at], np.float64)


def points_of(evidence: Evidence) -> Points:
    """Points where a drift is large, and others spread over all."""
    shape = evidence.expected.shape
    flat = [
        np.moveaxis(np.asarray(one, np.float64), 1, -1).reshape(-1, shape[1])
        for one in (evidence.expected, evidence.found)
    ]
    rows = telling(flat[0], flat[1], COUNT)
    samples, *places = np.unravel_index(rows, (shape[0], *shape[2:]))
    return Points(samples, tuple(places))


def gathered(x: Floats, axes: Sequence[Axis], points: Points, fill: float = 0.0) -> Floats:
    """What the windows see at some points: (points, channels, *kernel)."""
    count, space = len(points.samples), len(axes)
    index: list[Any] = [points.samples.reshape(-1, *[1] * space)]
    outside = np.zeros((count, *(axis.kernel for axis in axes)), bool)
    for number, (axis, place) in enumerate(zip(axes, points.places, strict=True)):
        sources = axis.sources(place, x.shape[2 + number])
        sources = sources.reshape(count, *[1] * number, axis.kernel, *[1] * (space - number - 1))
        outside = outside | (sources < 0)
        index.append(np.maximum(sources, 0))
    # The channels come last this way, which spares a copy of the input.
    seen = np.moveaxis(x[(index[0], slice(None), *index[1:])], -1, 1)
    return np.where(outside[:, None], fill, seen) if outside.any() else seen
