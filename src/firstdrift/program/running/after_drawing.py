"""What a call makes of the random numbers that it drew: they are taken from the trace, never drawn again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Values = Sequence[torch.Tensor]


def _native_dropout(args: Any, mask: torch.Tensor) -> Values:
    mask = mask.to(torch.bool)
    if args[2:3] == [False]:  # not training: nothing was dropped
        return [args[0].clone(), mask]
    keep = 1.0 - args[1]
    return [(args[0] * mask).mul_(0.0 if keep == 0.0 else 1.0 / keep), mask]


def _rrelu(args: Any, noise: torch.Tensor) -> Values:
    training = args[4] if len(args) > 4 else False
    if not training:  # nothing was drawn, and the noise was not read
        lower, upper = (args[2:4] + [1 / 8, 1 / 3][len(args[2:4]) :])[:2]
        return [torch.nn.functional.leaky_relu(args[0], (lower + upper) / 2), noise]
    return [torch.where(args[0] <= 0, args[0] * noise, args[0]), noise]


# What a call makes of the numbers that it drew, where it draws and computes in one.
AFTER_DRAWING: dict[str, Callable[[Any, torch.Tensor], Values]] = {
    "native_dropout": _native_dropout,
    "_fused_dropout": _native_dropout,
    "rrelu_with_noise": _rrelu,
    "rrelu_with_noise_": _rrelu,
}
