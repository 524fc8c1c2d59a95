"""A tensor flattened in another order of its axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations

import numpy as np

from ...traces import Array
from ..evidence import Evidence
from ..hypotheses import Finding
from ..variants import Screen, Variant, findings, forward, reproduces

MOST_AXES = 5


def flattened(evidence: Evidence) -> Iterable[Finding]:
    """The one input in another shape, whose axes the candidate exchanged before they were merged."""
    if not forward(evidence) or len(evidence.inputs) != 1:
        return
    (key, x), expected = next(iter(evidence.inputs.items())), evidence.expected
    seen = evidence.candidate_inputs.get(key, x)
    if x.size != expected.size or x.shape == expected.shape or not 3 <= x.ndim <= MOST_AXES or seen.shape != x.shape:
        return
    if not reproduces(np.asarray(x, np.float64).reshape(expected.shape), expected, evidence.noise):
        return
    orders = [(0, *order) for order in permutations(range(1, x.ndim)) if list(order) != sorted(order)]
    shape = ", ".join(map(str, x.shape))
    variants: list[Variant[Evidence]] = [
        Variant("axis-order", f"the axes of ({shape}) are merged in the order {', '.join(map(str, order))}",
                _merged(key, order), 0, {"order": list(order)})
        for order in orders
    ]  # fmt: skip
    yield from findings(evidence, Screen(evidence, evidence, evidence), variants)


def _merged(key: str, order: tuple[int, ...]) -> Callable[[Evidence], Array]:
    def predict(evidence: Evidence) -> Array:
        return evidence.candidate_inputs[key].transpose(order).reshape(evidence.expected.shape)

    return predict
