"""What a backward pass is known by: what it starts from, its right formula, and the mistakes that are made there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...strict_json import Json
from ...traces import Array
from ..agreement import Floats, floats
from ..screening import sampled


@dataclass(frozen=True, slots=True)
class Backward:
    """What a backward pass starts from: the gradient of the output, the input, and the module."""

    gradient: Floats
    value: Floats
    parameters: Mapping[str, Array] = field(default_factory=dict)
    attrs: Mapping[str, Json] = field(default_factory=dict)

    def parameter(self, port: str) -> Floats | None:
        """The module's parameter or buffer of that name."""
        return floats(self.parameters[port]) if port in self.parameters else None

    def number(self, *names: str, default: float) -> float:
        """A setting, by the first of its names that is there."""
        for name in names:
            value = self.attrs.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        return default

    def at(self, places: NDArray[np.intp]) -> Backward:
        """Some elements alone."""
        gradient, value = (sampled(one, places) for one in (self.gradient, self.value))
        return replace(self, gradient=gradient, value=value)

    def first(self, count: int) -> Backward:
        """The first samples alone."""
        return replace(self, gradient=self.gradient[:count], value=self.value[:count])

    def on(self, value: Floats) -> Backward:
        """The same with another input."""
        return replace(self, value=value)


Formula = Callable[[Backward], Floats]
Mistakes = Mapping[str, Formula]


@dataclass(frozen=True, slots=True)
class Known:
    """A right backward, by the name of its operation, and the mistakes that are made there.

    `certain` says that shapes or the operation's name leave no other choice. An `elementwise` one makes each element
    of that element alone, one by `samples` each sample along the first axis of that sample alone; so do its mistakes.
    """

    name: str
    formula: Formula
    mistakes: Mistakes
    certain: bool = False
    elementwise: bool = False
    samples: bool = False


EPS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3)  # that norms have where none is stated
TRANSPOSED = "multiplies by the weight where its transpose belongs, or the other way round"


def known_linears(b: Backward) -> Iterator[Known]:
    """Products with a matrix, stored as (out, in) or as (in, out)."""
    weight = b.parameter("weight")
    if weight is None or weight.ndim != 2:
        return
    ends = b.gradient.shape[-1:], b.value.shape[-1:]
    square = weight.shape[0] == weight.shape[1]
    for matrix, called in ((weight, "the linear layer"), (weight.T, "the linear layer stored as [in, out]")):
        if (matrix.shape[:1], matrix.shape[1:]) == ends and b.gradient.shape[:-1] == b.value.shape[:-1]:
            mistakes: dict[str, Formula] = {}
            if square:
                mistakes[TRANSPOSED] = partial(_times, matrix.T)
                mistakes["forgets the weight"] = lambda b: b.gradient.copy()
            yield Known(called, partial(_times, matrix), mistakes, True, samples=b.value.ndim > 1)


def _times(matrix: Floats, b: Backward) -> Floats:
    return np.asarray(b.gradient @ matrix, np.float64)
