"""A model in float64, although its code says float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}


def in_dtype(value: Any, dtype: torch.dtype) -> Any:
    """Everything floating in a model or in data, in another dtype; the rest as it is."""
    if not isinstance(value, nn.Module):
        return tree_map(lambda item: _converted(item, dtype), value)
    value._apply(lambda tensor: _converted(tensor, dtype))
    for module in value.modules():  # tables that were never registered as buffers
        for name, item in vars(module).items():
            if isinstance(item, torch.Tensor):
                setattr(module, name, _converted(item, dtype))
    return value


def dtype_of(model: nn.Module) -> torch.dtype:
    """The coarsest floating-point dtype that a model keeps its parameters in."""
    found = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _converted(item: Any, dtype: torch.dtype) -> Any:
    if not isinstance(item, torch.Tensor):
        return item
    if item.is_floating_point():
        return item.to(dtype)
    return item.to(_COMPLEX[dtype]) if item.is_complex() and dtype in _COMPLEX else item


class Lifting(TorchDispatchMode):
    """Inside, whatever is cast to float32, or made as float32, is float64: a norm that computes in float32 'to be
    precise' would otherwise be the least precise part of a float64 run. So is what is cast to the `own` dtype of the
    model, which changes nothing where it runs. Casts to shorter formats stay: they are what a check looks for. With
    `shorter` they go too, and what is left is what the code means."""

    def __init__(self, own: torch.dtype = torch.float32, shorter: bool = False) -> None:
        super().__init__()
        self._lifted = {own: torch.float64, torch.float32: torch.float64, torch.complex64: torch.complex128}
        if shorter:
            self._lifted |= {torch.float16: torch.float64, torch.bfloat16: torch.float64}

    def __enter__(self) -> Any:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.set_default_dtype(self._before)
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation, with float32 replaced by float64 where it is asked for."""
        lifted = self._lifted
        kwargs = {key: lifted.get(item, item) if key == "dtype" else item for key, item in (kwargs or {}).items()}
        args = tuple(lifted.get(item, item) if isinstance(item, torch.dtype) else item for item in args)
        return func(*args, **kwargs)
