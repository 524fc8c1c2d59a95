"""From a case to its two models, with inputs, losses and optimizers: everything that `fd.check` takes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from .case import Case, LossFunction, OptimizerFactory
from .networks import find_network
from .renaming import rename

DTYPES = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "mixed": (torch.float32, torch.bfloat16),
    "precise": (torch.bfloat16, torch.float32),  # the candidate computes better than the reference
    "double": (torch.float32, torch.float64),
    "fp64": (torch.float64, torch.float64),
}


@dataclass(frozen=True)
class Sides:
    """Both sides of a case. The fields are the keywords of `fd.check`."""

    reference: nn.Module
    candidate: nn.Module
    inputs: tuple[Any, ...]
    candidate_inputs: tuple[Any, ...]
    loss_fn: LossFunction | None = None
    candidate_loss_fn: LossFunction | None = None
    target: torch.Tensor | None = None
    candidate_target: torch.Tensor | None = None
    optimizer: OptimizerFactory | None = None
    candidate_optimizer: OptimizerFactory | None = None
    name_map: dict[str, str] | None = None
    seed: int = 0
    train: bool = False
    steps: int = 1

    def keywords(self) -> dict[str, Any]:
        """For `fd.check`; what is None keeps its default there."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}


def build(case: Case, precision: str | None = None) -> Sides:
    """Both sides; `precision` runs the case in another one than its own, such as fp64."""
    network = find_network(case.network)
    ours, theirs = DTYPES[precision or case.precision]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + case.seed)
        reference = network.make_reference(case.config)
        _load(reference, reference, case.both_weights)
        inputs, target = network.inputs(), network.target()
        inputs = case.inputs(inputs) if case.inputs else inputs
        if case.prepare is not None:
            case.prepare(reference, inputs)
        candidate = network.make_candidate(case.candidate, case.planted, case.config)
        _load(candidate, reference, case.weights)
    names = rename(candidate, case.rename) if case.rename else None
    if names is None and case.name_map is not None:
        names = dict(case.name_map)
    fed = case.candidate_inputs(inputs) if case.candidate_inputs else inputs
    loss = (case.loss or network.loss) if case.training else None
    reference.to(ours)
    if ours == torch.bfloat16:  # both start from the weights and inputs that the reference has
        candidate.to(ours)
        fed = _cast(fed, ours)
    return Sides(
        reference,
        candidate.to(theirs),
        _cast(inputs, ours),
        _cast(fed, theirs),
        loss,
        (case.candidate_loss or loss) if case.training else None,
        target if case.training else None,
        (case.candidate_target(target) if case.candidate_target else target) if case.training else None,
        case.optimizer,
        case.candidate_optimizer or case.optimizer,
        None if case.unmapped else names,
        case.seed,
        case.train_mode,
        case.steps,
    )


def _load(model: nn.Module, source: nn.Module, changes: Any) -> None:
    state = {name: value.detach().clone() for name, value in source.state_dict().items()}
    for change in changes:
        change(state)
    model.load_state_dict(state)


def _cast(inputs: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)
