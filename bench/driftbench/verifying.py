"""Is a case what it says? Both sides in float64: a bug must change the function, a rewrite must not."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from .asking import run_step
from .case import Case
from .sides import Sides, build

Tensors = dict[str, torch.Tensor]


def float64_differences(case: Case) -> dict[str, float]:
    """The relative difference of the two sides in float64: of outputs, loss, gradients and updates.

    Of gradients and updates the largest of any parameter that both have, on the scale of the largest there is.
    """
    sides = build(case, "fp64")
    ours, theirs = _run(sides, "reference"), _run(sides, "candidate")
    names = {name: name for name in theirs["update"]} if sides.name_map is None else _mapped(sides)
    found = {what: _distance(ours[what], theirs[what], None) for what in ("output", "loss")}
    found |= {what: _distance(ours[what], theirs[what], names) for what in ("grad", "update")}
    return found


def _mapped(sides: Sides) -> dict[str, str]:
    """Parameters of the candidate by their names in the reference."""
    assert sides.name_map is not None
    paths = sorted(sides.name_map, key=len, reverse=True)
    found = {}
    for name, _ in sides.candidate.named_parameters():
        owner, _, port = name.rpartition(".")
        if owner in paths:
            found[name] = f"{sides.name_map[owner]}.{port}"
    return found


def _run(sides: Sides, which: str) -> dict[str, Tensors]:
    candidate = which == "candidate"
    model = copy.deepcopy(sides.candidate if candidate else sides.reference).train(sides.train)
    inputs = sides.candidate_inputs if candidate else sides.inputs
    loss_fn = sides.candidate_loss_fn if candidate else sides.loss_fn
    target = sides.candidate_target if candidate else sides.target
    factory = sides.candidate_optimizer if candidate else sides.optimizer
    optimizer = factory(model) if factory else None
    before = {name: value.detach().clone() for name, value in model.state_dict().items()}
    outputs: list[Any] = []
    model.register_forward_hook(lambda module, args, output: outputs.append(output))
    loss = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sides.seed)
        for _ in range(sides.steps):
            loss = run_step(model, inputs, loss_fn, target, optimizer)
    return {
        "output": {f"{call}": tensor for call, tensor in enumerate(_flat(outputs))},
        "loss": {} if loss is None else {"loss": loss.detach()},
        "grad": _gradients(model) if loss is not None else {},
        "update": {name: value - before[name] for name, value in model.state_dict().items()},
    }


def _gradients(model: nn.Module) -> Tensors:
    return {
        name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in model.named_parameters()
    }


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.detach()] if value.is_floating_point() else []
    return [tensor for item in value for tensor in _flat(item)]


def _distance(ours: Tensors, theirs: Tensors, names: dict[str, str] | None) -> float:
    pairs = [
        (ours[(names or {}).get(name, name)], value) for name, value in theirs.items() if _known(name, ours, names)
    ]
    largest = max((float(a.double().norm()) for a, _ in pairs), default=0.0)
    worst = 0.0
    for a, b in pairs:
        if a.shape != b.shape:
            continue
        if not bool(torch.isfinite(a).all()) or not bool(torch.isfinite(b).all()):
            if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
                return float("inf")
            a, b = torch.nan_to_num(a, 0, 0, 0), torch.nan_to_num(b, 0, 0, 0)
        scale = float(a.double().norm()) or largest
        distance = float((a.double() - b.double()).norm())
        if distance > 1e-12 * largest:  # a gradient that is zero in exact arithmetic has no scale of its own
            worst = max(worst, distance / scale if scale else float("inf"))
    return worst


def _known(name: str, ours: Tensors, names: dict[str, str] | None) -> bool:
    if names is None:
        return name in ours
    return name in names and names[name] in ours
