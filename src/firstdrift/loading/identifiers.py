"""The ids that failures carry, as the project whose behaviours these are has them."""

from __future__ import annotations

OPEN = "FALSIFY-APR-PRETRAIN-INIT-003"  # there is no such file, or it cannot be read
MAGIC = "FALSIFY-APR-PRETRAIN-INIT-004"  # it is no checkpoint
ARCHITECTURE = "FALSIFY-APR-PRETRAIN-INIT-005"  # it does not say what model it is of
LOAD = "FALSIFY-APR-PRETRAIN-INIT-006"  # its tensors cannot be used
POPULATE = "FALSIFY-APR-PRETRAIN-INIT-007"  # its tensors are not those of the model
ENCODER = "FALSIFY-APR-PRETRAIN-ARCH-007"  # an encoder, where a decoder is wanted
FAMILY = "FALSIFY-INIT-ARCH-MATCH-001"  # metadata and tensor names speak of different families
MEAN = "PMAT-187"  # the check of values
