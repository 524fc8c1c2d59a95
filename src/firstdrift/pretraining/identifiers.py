"""The ids that failures of a training run carry, beside those of loading weights."""

from __future__ import annotations

from ..loading.identifiers import LOAD

VOCABULARY = "GATE-ARCH-370M-011"  # the tokenizer and the model's embedding
STRICT = "INV-ARCH-370M-006"  # exactly as many entries
RELAXED = "INV-ARCH-370M-006-RELAXED"  # no more entries than rows
CUDA = "GATE-GPUTRAIN-002"  # CUDA was asked for, and there is none
WEAK = LOAD  # the given weights are hardly better than random ones
