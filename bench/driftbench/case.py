"""What a case is: data. The truth in it is derived from where the bug is planted, never from what a tool says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

Bugs = Mapping[str, Any]  # the name of a bug and its value: a number, or True
NO_BUGS: Bugs = {}
Change = Callable[[dict[str, torch.Tensor]], None]  # of the candidate's state dict, in place
OptimizerFactory = Callable[[nn.Module], torch.optim.Optimizer]
LossFunction = Callable[[Any, torch.Tensor], torch.Tensor]


class Place(NamedTuple):
    """A site as a truth names it."""

    phase: str
    name: str
    port: str

    def __str__(self) -> str:
        return f"{self.phase} {self.name or '(root)'}:{self.port}"


@dataclass(frozen=True)
class Truth:
    """Where a bug first shows and what it is called.

    Several places where one tensor has several names, several labels where they mean the same thing here.
    """

    places: tuple[Place, ...]
    labels: tuple[str, ...]
    parameters: Mapping[str, float] = field(default_factory=dict)
    step: int = 0
    call: int = 0


@dataclass(frozen=True)
class Planted:
    """Bugs by name, and the layers that have them; None for all. `rewrites` are harmless, and in all layers."""

    bugs: Bugs = field(default_factory=dict)
    layers: Collection[int] | None = None
    rewrites: Bugs = field(default_factory=dict)

    def at(self, layer: int) -> Bugs:
        """What one layer has."""
        here = self.bugs if self.layers is None or layer in self.layers else {}
        return {**self.rewrites, **here}


@dataclass(frozen=True)
class Case:
    """One question with its answer. `truth` is None where the two sides compute the same function."""

    name: str
    network: str
    family: str
    truth: Truth | None
    planted: Planted = Planted()
    config: Mapping[str, Any] = field(default_factory=dict)
    candidate: str = ""  # another implementation than the network's usual candidate
    weights: tuple[Change, ...] = ()  # what loading does to the candidate's weights
    both_weights: tuple[Change, ...] = ()  # what is special about the weights of both
    precision: str = "fp32"  # a row of sides.DTYPES
    catalogue: tuple[str, ...] = ()
    what: str = ""
    training: bool = False  # loss, gradients, and a step where there is an optimizer
    optimizer: OptimizerFactory | None = None
    candidate_optimizer: OptimizerFactory | None = None
    loss: LossFunction | None = None  # instead of the network's own
    candidate_loss: LossFunction | None = None
    inputs: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None  # makes other inputs of the network's, for both
    candidate_inputs: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    candidate_target: Callable[[torch.Tensor], torch.Tensor] | None = None
    prepare: Callable[[nn.Module, tuple[Any, ...]], None] | None = None  # changes the reference's weights or inputs
    name_map: Mapping[str, str] | None = None  # candidate path -> reference path
    rename: Mapping[str, str] = field(default_factory=dict)  # parts of paths that the candidate calls otherwise
    unmapped: bool = False  # the other names are for firstdrift to match; only `check` can
    train_mode: bool = False
    steps: int = 1
    seed: int = 0
    bound: float = 1e-9  # how much a benign case may differ in float64, and why
    legal: str = ""
    trap: bool = False

    @property
    def benign(self) -> bool:
        """Whether the two sides compute the same function."""
        return self.truth is None

    @property
    def scope(self) -> str:
        """How far the bug reaches."""
        if self.weights and not self.planted.bugs:
            return "weights only"
        if not self.planted.bugs:
            return "outside the model"
        return "all layers" if self.planted.layers is None else "single layer"


def out(name: str, port: str = "out") -> Place:
    """The output of a module."""
    return Place("fwd", name, port)


def glue(name: str, port: str = "in.0") -> Place:
    """A tensor made between modules, at the innermost module that reads it."""
    return Place("fwd", name, port)


def weight(name: str, port: str = "weight") -> Place:
    """A parameter before the step."""
    return Place("weight", name, port)


def truth(
    place: Place | tuple[Place, ...], labels: str | tuple[str, ...], step: int = 0, call: int = 0, **parameters: float
) -> Truth:
    """A truth, with one place or label written plainly."""
    places = (place,) if isinstance(place, Place) else place
    return Truth(places, (labels,) if isinstance(labels, str) else labels, parameters, step, call)


def in_precisions(case: Case, *precisions: str) -> list[Case]:
    """The same case in each of these precisions, named after them."""
    return [replace(case, name=f"{case.name}/{precision}", precision=precision) for precision in precisions]
