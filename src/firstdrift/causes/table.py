"""Every hypothesis there is. To add one: a function in the module of its family, listed in that module's tuple."""

from __future__ import annotations

from . import adapters, attention, by_definition, elementwise, fed, integrity, linear, missing_modules, two_axes, wiring
from .activations import activated, activation_variants, clamped_gates, gate_inputs
from .backward import gradients
from .hypotheses import Hypothesis
from .image import spatial, token_pooling
from .layout import layouts, packing, permutations, shared_heads, some_slices
from .loss import losses
from .mixture import routing
from .norm import norms
from .optimizer import optimizers
from .position import embeddings, rope
from .precision import fake_quantisers, operand_rounding, quantisation, quantisers, rounding
from .recurrence import recurrent
from .sums import glue, lone_terms, stray_terms, tabled_terms
from .weight import weight_copies, weights

# What is said where nothing else is comes first, lest time runs out before it. Then what makes all else meaningless,
# what speaks of one phase only, and the cheap before the expensive.
FAMILIES = (
    by_definition, weight_copies, fed, integrity, weights, losses, gradients, optimizers, wiring, missing_modules,
    elementwise, two_axes, layouts, permutations, shared_heads, rounding, operand_rounding, quantisation,
    quantisers, fake_quantisers, glue, activated, gate_inputs, stray_terms, tabled_terms, lone_terms, packing,
    clamped_gates, activation_variants, norms, linear, adapters, embeddings, rope, some_slices, spatial, token_pooling,
    recurrent, attention, routing,
)  # fmt: skip

TABLE: tuple[Hypothesis, ...] = tuple(hypothesis for family in FAMILIES for hypothesis in family.HYPOTHESES)
