"""From a case to its two models with the same weights, inputs, loss and optimizers: what `fd.check` takes."""

from __future__ import annotations

from fnmatch import fnmatchcase

import torch
from driftbench.sides import Sides
from torch import nn

from .case import Case
from .loading import Release


def build(case: Case, fixed: Release, buggy: Release) -> Sides:
    """Both sides; the fixed release is the reference, and the candidate starts from its weights."""
    reference, candidate = _made(case, fixed), _made(case, buggy)
    if case.prepare is not None:
        case.prepare(reference)
    _copy_weights(case, reference, candidate)
    inputs = case.inputs()
    return Sides(
        reference,
        candidate,
        inputs,
        inputs,
        case.loss,
        case.loss,
        None,
        None,
        None if case.optimizer is None else lambda model: case.optimizer(fixed, model),
        None if case.optimizer is None else lambda model: case.optimizer(buggy, model),
        _name_map(case, reference, candidate),
        train=case.train,
        steps=case.steps,
    )


def _made(case: Case, release: Release) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000)
        return case.make(release).train(case.train)


def _copy_weights(case: Case, reference: nn.Module, candidate: nn.Module) -> None:
    """Every tensor of the candidate is the reference's, but for those that the case says are its own."""
    ours = reference.state_dict()
    state = candidate.state_dict()
    for name in state:
        if not any(fnmatchcase(name, glob) for glob in case.own):
            state[name] = ours[_reference_name(case, name)].clone()
    candidate.load_state_dict(state)


def _reference_name(case: Case, name: str) -> str:
    for theirs, ours in case.renamed.items():
        if name == theirs or name.startswith(f"{theirs}."):
            return (ours + name[len(theirs) :]).removeprefix(".")
    return name


def _name_map(case: Case, reference: nn.Module, candidate: nn.Module) -> dict[str, str] | None:
    if not case.renamed:
        return None
    known = {name for name, _ in reference.named_modules()}
    names = {name: _reference_name(case, name) for name, _ in candidate.named_modules()}
    return {theirs: ours for theirs, ours in names.items() if ours in known}
