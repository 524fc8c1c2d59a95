"""The dtypes of a program as torch has them, and what float64 lifts them to."""

from __future__ import annotations

import torch

from ...core.dtypes import ML_NAMES, NUMPY_NAMES

_LONG = {"f": "float", "c": "complex", "i": "int", "u": "uint"}
TORCH_DTYPES = {
    **{name: getattr(torch, f"{_LONG[name[0]]}{name[1:]}") for name in NUMPY_NAMES if name[0] in _LONG},
    **{short: getattr(torch, name) for short, name in ML_NAMES.items() if hasattr(torch, name)},
    "bool": torch.bool,
}
LIFTED = {
    kind: torch.complex128 if kind.is_complex else torch.float64
    for kind in TORCH_DTYPES.values()
    if kind.is_complex or kind.is_floating_point
}


def lifted(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in float64 if it is float, in complex128 if it is complex."""
    return tensor.to(LIFTED.get(tensor.dtype, tensor.dtype))
