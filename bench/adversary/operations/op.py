"""What an operation is: a formula that float64 makes exact, legal rewrites of it, and wrong variants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]
Compute = Callable[["Op", Sequence[Tensor], Weights, np.random.Generator], Tensor]


@dataclass(frozen=True)
class Formula:
    """One legal way to write an operation; `wide` ones keep sums that a 16-bit dtype would not."""

    name: str
    compute: Compute
    wide: bool = False


@dataclass(frozen=True)
class Way:
    """A formula, the dtype it is computed in, and the seed of its orders of summation."""

    formula: Formula
    work: torch.dtype
    seed: int


@dataclass(frozen=True)
class Wrong:
    """A wrong variant of an operation: which kind of mistake, in words, and what is computed instead."""

    kind: str  # constant, missing or dtype
    label: str
    op: Op
    attrs: dict[str, float] | None = None  # what the candidate would state of it


@dataclass(frozen=True)
class Op:
    """Settings of one operation. `low` rounds what it reads to a lower precision: never right."""

    low: torch.dtype | None = None
    formulas: ClassVar[tuple[Formula, ...]] = ()  # the first is what the reference runs and what float64 runs

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its weights, by the name they have in a checkpoint."""
        return {}

    def buffers(self) -> frozenset[str]:
        """Those of its weights that no gradient reaches."""
        return frozenset()

    def initial(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Random values for a weight: gains around 1, everything else of a size that keeps activations near 1."""
        values = rng.standard_normal(shape)
        if len(shape) == 1:
            return 1 + 0.2 * values if name == "weight" else 0.3 * values
        return values / np.sqrt(np.prod(shape[1:]))

    def module(self) -> nn.Module:
        """What the reference is recorded with."""
        return type(type(self).__name__, (Plain,), {})(self)

    def wrong(self, rng: np.random.Generator) -> list[Wrong]:
        """Other constants and missing parts."""
        return []

    def exact(self, inputs: Sequence[Tensor], weights: Weights) -> Tensor:
        """The formula on these tensors, in their dtype."""
        return self.formulas[0].compute(self, inputs, weights, np.random.default_rng(0))


class Plain(nn.Module):
    """A module that runs an operation's first formula, under the operation's name."""

    def __init__(self, op: Op) -> None:
        super().__init__()
        self.op = op
        for name, shape in op.shapes().items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.op.exact(inputs, dict(self.named_parameters()))


def compute(op: Op, way: Way, inputs: Sequence[Tensor], weights: Weights, store: torch.dtype) -> Tensor:
    """An operation's result as it is stored, computed this way from stored tensors."""

    def read(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return (tensor if op.low is None else tensor.to(op.low)).to(way.work)

    inputs, weights = [read(one) for one in inputs], {name: read(one) for name, one in weights.items()}
    return way.formula.compute(op, inputs, weights, np.random.default_rng(way.seed)).to(store)


def draw_way(op: Op, store: torch.dtype, rng: np.random.Generator) -> Way:
    """Any legal way to compute an operation whose result is stored in this dtype."""
    formula = op.formulas[rng.integers(len(op.formulas))]
    works = [torch.float32, torch.float64]
    if store in (torch.float16, torch.bfloat16) and not formula.wide:
        works = [store, store, torch.float32, torch.float64]
    return Way(formula, works[rng.integers(len(works))], int(rng.integers(1 << 31)))


def lowered(op: Op, store: torch.dtype) -> list[Wrong]:
    """The operation computed in a lower precision than it is stored in."""
    below = {
        torch.float32: (torch.bfloat16, torch.float16),
        torch.float16: (torch.bfloat16, torch.float8_e4m3fn),
        torch.bfloat16: (torch.float8_e4m3fn,),
    }
    return [
        Wrong("dtype", f"computed in {str(low).removeprefix('torch.')}", replace(op, low=low))
        for low in below.get(store, ())
    ]
