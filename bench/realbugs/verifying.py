"""Whether a case is one: a bug changes what is computed, a rewrite does not. No tool is asked."""

from __future__ import annotations

import copy

import torch
from driftbench.asking import run_step
from driftbench.sides import Sides
from torch import nn

from .case import Case

CLEAR = 1e-5  # relative: what a bug changes at least
ROUNDING = 1e-6  # relative, in float32: what a rewrite may change that is not made for float64
SMALL = 1e-9  # relative, in float64: what a rewrite may change


def is_what_it_says(case: Case, sides: Sides) -> bool:
    """A bug shows as the releases run; a rewrite stays within rounding in float64."""
    if case.rewrite:
        return _within_rounding(sides)
    return largest_difference(sides, torch.float32) > CLEAR


def _within_rounding(sides: Sides) -> bool:
    try:
        if largest_difference(sides, torch.float64) < SMALL:
            return True
    except RuntimeError:
        pass
    return largest_difference(sides, torch.float32) < ROUNDING  # a release that makes float32 tensors on its way


def largest_difference(sides: Sides, dtype: torch.dtype) -> float:
    """Between outputs, losses, gradients, weights and optimizer states of the last step, relative to each tensor."""
    ours = _results(sides, sides.reference, sides.inputs, sides.optimizer, dtype)
    theirs = _results(sides, sides.candidate, sides.candidate_inputs, sides.candidate_optimizer, dtype)
    return max((_difference(a, b) for a, b in zip(ours, theirs, strict=False)), default=0.0)


def _results(sides: Sides, model: nn.Module, inputs: object, factory: object, dtype: torch.dtype) -> list[torch.Tensor]:
    model = copy.deepcopy(model).to(dtype)
    inputs = _cast(inputs, dtype)
    optimizer = factory(model) if callable(factory) else None
    torch.manual_seed(sides.seed)
    losses = [run_step(model, inputs, sides.loss_fn, sides.target, optimizer) for _ in range(sides.steps)]
    torch.manual_seed(sides.seed)
    with torch.no_grad():
        outputs = _tensors(model(*inputs))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    states = _tensors([list(state.values()) for state in optimizer.state.values()]) if optimizer is not None else []
    return [*outputs, *_tensors(losses), *gradients, *model.parameters(), *states]


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.detach()]
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for one in value for leaf in _tensors(one)] if isinstance(value, list | tuple) else []


def _cast(value: object, dtype: torch.dtype) -> object:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    return tuple(_cast(one, dtype) for one in value) if isinstance(value, tuple) else value


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    if not a.numel() or torch.equal(a, b):
        return 0.0
    found = float((a.double() - b.double()).norm() / a.double().norm().clamp(min=1e-30))
    return found if found == found else float("inf")
