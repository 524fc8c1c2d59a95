"""Runs that differ from a run by one rounding: what comes in, or what one module makes, times one plus or minus eps.

In the working precision, so that everything after it rounds anew: the same perturbation carried through in float64
underestimates noise by a factor of three to five.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .copying import copied_model
from .sides import Side

_SHORTER = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Point:
    """One call of one module, whose output is perturbed."""

    name: str
    call: int


def at_inputs(side: Side, seed: int) -> tuple[Side, bool]:
    """The side with everything perturbed that comes in as floats, or that a lookup of integers makes; and whether
    there is any such thing."""
    noise = _Noise(seed)
    data = side.args, dict(side.kwargs)
    args, kwargs = noise.everywhere(data)
    model = copied_model(side.model)
    found = any(_is_float(leaf) for leaf in tree_leaves(data))
    for module in model.modules():
        if not any(module.children()):
            module.register_forward_hook(noise.of_lookups, with_kwargs=True)
            found |= isinstance(module, nn.Embedding | nn.EmbeddingBag)
    return replace(side, model=model, args=args, kwargs=kwargs), found


def at_module(side: Side, point: Point, seed: int) -> Side:
    """The side with the output of one call of one module perturbed."""
    model = copied_model(side.model)
    calls = iter(range(1 << 62))
    noise = _Noise(seed)

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        return noise.everywhere(output) if next(calls) == point.call else output

    model.get_submodule(point.name).register_forward_hook(hook)
    return replace(side, model=model)


class _Noise:
    """Perturbs tensors, each time by other signs; the program's own random numbers are not used."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def everywhere(self, value: Any) -> Any:
        """Every float in a structure, perturbed."""
        return tree_map(lambda item: self._perturbed(item) if _is_float(item) else item, value)

    def of_lookups(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """A forward hook: the first floats of a model that is fed integers."""
        tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        return self.everywhere(output) if tensors and not any(map(_is_float, tensors)) else output

    def _perturbed(self, tensor: torch.Tensor) -> torch.Tensor:
        signs = torch.randint(0, 2, tensor.shape, generator=self._generator) * 2 - 1
        factor = 1 + signs.to(tensor.device, torch.float64) * _eps(tensor)
        return tensor * factor.to(tensor.dtype)


def _is_float(item: object) -> bool:
    return isinstance(item, torch.Tensor) and item.is_floating_point()


def _eps(tensor: torch.Tensor) -> float:
    """Of the precision that the tensor is worked on in."""
    own = torch.finfo(tensor.dtype).eps
    device = tensor.device.type
    if not torch.is_autocast_enabled(device):
        return own
    return max(own, torch.finfo(torch.get_autocast_dtype(device)).eps)


class Casts(TorchDispatchMode):
    """Notes which modules of a float64 run cast to a shorter type: what they compute is not float64 by itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: dict[str, None] = {}
        self._model = model
        self._inside: list[str] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the model while a block runs."""
        handles = []
        for name, module in self._model.named_modules():
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: self._inside.append(name)))
            handles.append(module.register_forward_hook(lambda *_: self._leave(), always_call=True))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _leave(self) -> None:
        self._inside.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation, as it is."""
        asked = (kwargs or {}).get("dtype")
        if func is torch.ops.aten._to_copy.default and args[0].dtype == torch.float64 and asked in _SHORTER:
            self.found[self._inside[-1] if self._inside else ""] = None
        return func(*args, **(kwargs or {}))
