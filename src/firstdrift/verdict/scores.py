"""Scores that a module chose by and that nobody recorded, made again from what it was fed and its own weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..sites import Site
from ..traces import Array
from .parts import LARGEST

Floats = NDArray[np.float64]
Both = tuple[Array, Array]


def scores_behind(
    choice: Site, sites: Iterable[Site], load: Callable[[Site], Both | None]
) -> Iterator[tuple[Site, tuple[Floats, Floats]]]:
    """What a module may have chosen by, on both sides, and the input that it is made of: products with its weight, and
    with a bias added to those, or to their sigmoid, as routers have it that balance their experts.

    Which of them it was shows by what was chosen. A softmax chooses as its inputs do.
    """
    own = [site for site in sites if (site.name, site.step) == (choice.name, choice.step)]
    made = [s for s in own if s.phase == "fwd" and s.port.startswith("in.") and s.call == choice.call]
    inputs, weights = ([(s, _floats(load(s))) for s in chosen] for chosen in (made, _of(own, "weight")))
    matrices = [both for _, both in weights if both is not None and both[0].ndim == 2]
    biases = [both for _, both in weights if both is not None and both[0].ndim == 1]
    for site, fed in inputs:
        for matrix in matrices if fed is not None and fed[0].ndim else ():
            assert fed is not None
            if fed[0].shape[-1] != matrix[0].shape[1] or fed[0].size // fed[0].shape[-1] * len(matrix[0]) > LARGEST:
                continue
            products = fed[0] @ matrix[0].T, fed[1] @ matrix[1].T
            yield site, products
            for bias in biases:
                if bias[0].shape == matrix[0].shape[:1]:
                    yield site, (products[0] + bias[0], products[1] + bias[1])
                    yield site, (_sigmoid(products[0]) + bias[0], _sigmoid(products[1]) + bias[1])


def _of(sites: Iterable[Site], phase: str) -> list[Site]:
    return [site for site in sites if site.phase == phase]


def _floats(both: Both | None) -> tuple[Floats, Floats] | None:
    """Both sides in float64; None where they are no floats, or too many."""
    if both is None or both[0].shape != both[1].shape or not 0 < both[0].size <= LARGEST:
        return None
    if any(one.dtype.kind not in "fV" for one in both):
        return None
    return np.asarray(both[0], np.float64), np.asarray(both[1], np.float64)


def _sigmoid(values: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * values))
