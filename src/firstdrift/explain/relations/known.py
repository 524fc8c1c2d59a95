"""Every relation there is. To add one: a function in the module of its family, listed in that module's tuple."""

from __future__ import annotations

from . import by_definition, coarser, elementwise, gradients, integrity, permutations, wiring
from . import strange_weights as weights
from .hypotheses import Hypothesis

# What no change of a program makes is asked before the program: weights, inputs, values that no formula gives, what all
# gradients have in common, calls.
GIVEN: tuple[Hypothesis, ...] = (
    *by_definition.INPUTS, *integrity.HYPOTHESES, *weights.HYPOTHESES, *gradients.HYPOTHESES, *wiring.CALLS,
)  # fmt: skip
# What says more than that the program has a factor: which few channels have it.
IN_PART: tuple[Hypothesis, ...] = elementwise.IN_PART
# What the program names better where there is one.
TABLE: tuple[Hypothesis, ...] = (
    *GIVEN, *by_definition.HYPOTHESES, *wiring.HYPOTHESES, *elementwise.HYPOTHESES,
    *permutations.HYPOTHESES, *coarser.HYPOTHESES,
)  # fmt: skip
# What says more than that a call reads something else: the output of an earlier call, of another module.
WIRED: tuple[Hypothesis, ...] = wiring.HYPOTHESES
