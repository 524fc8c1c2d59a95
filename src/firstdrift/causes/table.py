"""Every hypothesis there is. To add one: a function in the module of its family, listed in that module's tuple."""

from __future__ import annotations

from . import (
    activated,
    activation_variants,
    attention,
    by_definition,
    clamped_gates,
    elementwise,
    embeddings,
    fake_quantisers,
    fed,
    glue,
    gradients,
    integrity,
    layouts,
    linear,
    lone_terms,
    losses,
    missing_modules,
    norms,
    operand_rounding,
    optimizers,
    packing,
    permutations,
    quantisation,
    quantisers,
    recurrent,
    rope,
    rounding,
    routing,
    shared_heads,
    some_slices,
    spatial,
    stray_terms,
    token_pooling,
    weight_copies,
    weights,
    wiring,
)
from .hypotheses import Hypothesis

# What is said where nothing else is comes first, lest time runs out before it. Then what makes all else meaningless,
# what speaks of one phase only, and the cheap before the expensive.
FAMILIES = (
    by_definition, weight_copies, fed, integrity, weights, losses, gradients, optimizers, wiring, missing_modules,
    elementwise, layouts, permutations, shared_heads, rounding, operand_rounding, quantisation, quantisers,
    fake_quantisers, glue, activated, stray_terms, lone_terms, packing, clamped_gates, activation_variants, norms,
    linear, embeddings, rope, some_slices, spatial, token_pooling, recurrent, attention, routing,
)  # fmt: skip

TABLE: tuple[Hypothesis, ...] = tuple(hypothesis for family in FAMILIES for hypothesis in family.HYPOTHESES)
