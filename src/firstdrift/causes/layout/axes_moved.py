"""Where the elements of a tensor come from when its axes are put in another order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]


def source(split: Shape, axes: Shape, at: NDArray[np.intp]) -> NDArray[np.intp]:
    """Where in the tensor the elements lie that the other order of axes brings to these places."""
    there = np.unravel_index(at, tuple(split[axis] for axis in axes))
    here = [there[axes.index(axis)] for axis in range(len(split))]
    return np.asarray(np.ravel_multi_index(here, split))
