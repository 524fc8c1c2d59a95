"""How a training run fails, and the ids that its failures carry beside those of loading weights."""

from __future__ import annotations

from ..errors import FirstdriftError
from ..weights.loading.failures import LOAD


class TrainingError(FirstdriftError, RuntimeError):
    """A run that was started as asked has failed a check of its own: weak weights, a loss that is not finite."""


VOCABULARY = "GATE-ARCH-370M-011"  # the tokenizer and the model's embedding
STRICT = "INV-ARCH-370M-006"  # exactly as many entries
RELAXED = "INV-ARCH-370M-006-RELAXED"  # no more entries than rows
CUDA = "GATE-GPUTRAIN-002"  # CUDA was asked for, and there is none
UPLOAD = "FALSIFY-APR-PRETRAIN-INIT-CUDA-001"  # the given weights are not on the device that was asked for
# What the contract wants of step 0 it has under the id that its program gives to failed loads; these tell them apart.
GAP = f"{LOAD}-GAP"  # the given weights are hardly better than random ones
LOSS = f"{LOAD}-LOSS"  # the given weights are no trained language model's
SCRATCH = f"{LOAD}-SCRATCH"  # random weights know more than random weights can
