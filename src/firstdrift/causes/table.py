"""Every hypothesis there is. To add one: a function in the module of its family, listed in that module's tuple."""

from __future__ import annotations

from . import (
    activation_variants,
    attention,
    clamped_gates,
    elementwise,
    embeddings,
    fed,
    glue,
    gradients,
    integrity,
    layouts,
    linear,
    losses,
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
    spatial,
    stray_terms,
    token_pooling,
    weights,
    wiring,
)
from .hypotheses import Hypothesis

# What makes all else meaningless comes first, then what speaks of one phase only, then cheap before expensive.
FAMILIES = (
    fed, integrity, weights, losses, gradients, optimizers, wiring, elementwise, layouts, permutations, rounding,
    operand_rounding, quantisation, quantisers, glue, stray_terms, packing, clamped_gates, activation_variants, norms,
    linear, embeddings, rope, spatial, token_pooling,
    recurrent, attention, routing,
)  # fmt: skip

TABLE: tuple[Hypothesis, ...] = tuple(hypothesis for family in FAMILIES for hypothesis in family.HYPOTHESES)
