"""Asking firstdrift: `check` with both models at hand, `traces` with two recorded directories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import firstdrift as fd
from firstdrift.live.copying import copied_model
from firstdrift.pair.mapping import parse_map

from .case import Place
from .sides import Sides

MODES = ("check", "traces")


@dataclass(frozen=True)
class Answer:
    """What was said of a case."""

    verdict: str
    place: Place | None = None
    step: int = 0
    call: int = 0
    label: str | None = None
    parameters: Mapping[str, Any] | None = None
    sentence: str = ""
    exit_code: int = 0


def can_check() -> bool:
    """Whether this firstdrift has `fd.check`."""
    return hasattr(fd, "check")


def check(sides: Sides) -> Answer:
    """Both models in one process."""
    return answer_of(fd.check(**sides.keywords()))


@dataclass(frozen=True)
class Recorded:
    """Two traces of a case, and how their names correspond."""

    reference: Path
    candidate: Path
    options: dict[str, Any]  # of fd.diff


def record(sides: Sides, directory: Path) -> Recorded:
    """Run both sides under `fd.trace`."""
    reference = run_side(sides.reference, directory / "reference", sides, "reference")
    candidate = run_side(sides.candidate, directory / "candidate", sides, "candidate")
    options = {} if sides.name_map is None else {"map": parse_map(_mapping(sides, reference))}
    return Recorded(reference, candidate, options)


def _mapping(sides: Sides, reference: Path) -> str:
    """The name map as a mapping file: other names, and what has no counterpart."""
    assert sides.name_map is not None
    recorded = {line.site.name for line in fd.open_trace(reference)}
    names = {old: new for new, old in sides.name_map.items()}
    lines = []
    for name, _ in sides.reference.named_modules():
        if name in recorded and name and names.get(name) != name:
            target = f'"{names[name]}"' if name in names else "{ignore: no counterpart}"
            lines.append(f'"{name}": {target}\n')
    return "".join(lines)


def run_side(model: nn.Module, path: Path, sides: Sides, which: str) -> Path:
    """One side: a forward pass, or training steps where there is a loss."""
    candidate = which == "candidate"
    inputs = sides.candidate_inputs if candidate else sides.inputs
    loss_fn = sides.candidate_loss_fn if candidate else sides.loss_fn
    target = sides.candidate_target if candidate else sides.target
    factory = sides.candidate_optimizer if candidate else sides.optimizer
    model = copied_model(model).train(sides.train)
    optimizer = factory(model) if factory is not None else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sides.seed)
        with fd.trace(model, path, optimizer=optimizer, overwrite=True, seed=sides.seed):
            for _ in range(sides.steps):
                run_step(model, inputs, loss_fn, target, optimizer)
    return path


def run_step(model: nn.Module, inputs: Any, loss_fn: Any, target: Any, optimizer: Any) -> torch.Tensor | None:
    """A forward pass, and all of a training step that there is."""
    if loss_fn is None:
        with torch.no_grad():
            model(*inputs)
        return None
    (optimizer or model).zero_grad()
    loss: torch.Tensor = loss_fn(model(*inputs), target)
    loss.backward()  # type: ignore[no-untyped-call]
    if optimizer is not None:
        optimizer.step()
    return loss


def diff_traces(recorded: Recorded, **options: Any) -> Answer:
    """Two directories, compared."""
    return answer_of(fd.diff(recorded.reference, recorded.candidate, **recorded.options, **options))


def answer_of(result: fd.Result) -> Answer:
    """The essence of a result."""
    first = result.first_drift
    cause = first.cause if first is not None else result.cause
    return Answer(
        str(result.verdict),
        None if first is None else Place(first.phase, first.name, first.port),
        0 if first is None else first.step,
        0 if first is None else first.call,
        None if cause is None else cause.label,
        None if cause is None else cause.parameters,
        result.sentence,
        result.exit_code,
    )
