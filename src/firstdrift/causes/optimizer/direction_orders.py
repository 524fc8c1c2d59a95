"""The direction of a step that is applied with its axes in another order, while the weight decays where it lies.

Without decay the whole update is so ordered, which the layouts see.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from ..agreement import limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..layout.axes_moved import source
from ..screening import positions, sampled
from .reproduced_steps import reproduced

TRIED = 2048  # elements by which an order of axes is tried
MOST_AXES = 5


def direction_order(evidence: Evidence) -> Iterator[Finding]:
    """found less the decay is the reference's direction, transposed or read as the same shape in another order."""
    if evidence.site.phase != "weight_after" or not 2 <= evidence.found.ndim <= MOST_AXES:
        return
    step = reproduced(evidence)
    if step is None or step.key != "update" or not (step.rule.weight_decay and step.rule.decoupled):
        return
    direction = step.predict(weight_decay=0.0)
    decay = step.predict() - direction
    shape, flat = direction.shape, direction.reshape(-1)
    at = positions(direction.size, TRIED)
    wanted = sampled(evidence.found, at) - sampled(decay, at)
    enough = 2 * limit(evidence) * float(np.linalg.norm(sampled(evidence.found, at)))
    for split in dict.fromkeys((shape, shape[::-1])):
        for axes in permutations(range(len(split))):
            taken = source(split, axes, at)
            if (taken == at).all() or not float(np.linalg.norm(flat[taken] - wanted)) <= enough:
                continue
            predicted = decay + direction.reshape(split).transpose(axes).reshape(shape)
            how = "transposed" if len(shape) == 2 else f"with its axes in the order {axes}"
            yield Finding(
                "transpose" if len(shape) == 2 else "axis-order",
                f"the direction of the step is applied {how}, and the decay as it should be",
                predicted, 0, {"shape": list(split), "axes": list(axes)},
            )  # fmt: skip
            return


HYPOTHESES: tuple[Hypothesis, ...] = (direction_order,)
