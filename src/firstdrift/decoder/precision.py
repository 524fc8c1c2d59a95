"""What norms, softmax and angles are computed in."""

from __future__ import annotations

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32: a narrower model computes these parts wider, and one of float64 computes all in float64."""
    return torch.promote_types(dtype, torch.float32)
