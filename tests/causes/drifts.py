"""Drifts made with real operations: what the reference computes, and what a wrong candidate does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from firstdrift.capture.torch.names import attrs_of
from firstdrift.core.sites import Site
from firstdrift.explain.evidence import Evidence


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def array(tensor: Any) -> np.ndarray:
    found = tensor.detach().numpy() if isinstance(tensor, torch.Tensor) else np.asarray(tensor)
    return found.astype(np.float64) if found.dtype.kind == "f" else found


def shaken(tensor: Any, noise: float, seed: int = 0) -> np.ndarray:
    """The tensor with relative noise of that size on every element."""
    values = array(tensor)
    return values * (1 + noise * np.random.default_rng(seed).standard_normal(values.shape))


def settled(module: nn.Module, seed: int = 0) -> nn.Module:
    """A module in float64 whose parameters and buffers look trained: none are at zero or one."""
    module = module.double().eval()
    for number, one in enumerate([*module.parameters(), *module.buffers()]):
        if one.dtype.is_floating_point:
            one.data = random(seed + number, *one.shape) * 0.3 + (1.0 if one.ndim == 1 else 0.0)
    for name, one in module.named_buffers():
        if name.endswith("running_var"):
            one.data = one.abs() + 0.1
    return module


def drift(
    expected: Any, found: Any, inputs: Mapping[str, Any], parameters: Mapping[str, Any] | None = None,
    noise: float = 1e-7, op: str = "", attrs: Mapping[str, Any] | None = None, phase: str = "fwd", port: str = "out",
    **more: Any,
) -> Evidence:  # fmt: skip
    """Evidence of a drift, with noise of the given size on what was found."""
    seen = {key: array(one) for key, one in inputs.items()}
    weights = {key: array(one) for key, one in (parameters or {}).items()}
    return Evidence(
        Site(0, phase, "module", port), array(expected), shaken(found, noise / 2), noise, True, op, seen, seen,
        weights, weights, attrs or {}, attrs or {}, **more,
    )  # fmt: skip


def module_drift(module: nn.Module, x: torch.Tensor, found: Any, noise: float = 1e-7, told: bool = True) -> Evidence:
    """A drift at the output of a module; untold, its class and settings are unknown."""
    parameters = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    attrs = attrs_of(module) if told else {}
    op = type(module).__name__ if told else ""
    return drift(module(x), found, {"in.0": x}, parameters, noise, op, attrs)
