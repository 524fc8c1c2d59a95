"""What an operation is: a formula in float64, how its result could cancel, and its backward where there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..strict_json import Json
from ..traces import Array

Floats = NDArray[np.float64]
Parameters = Mapping[str, Floats]
Inputs = Sequence[Floats]
Lazy = Floats | Callable[[], Floats]  # what is dear to compute is computed when it is asked for
Gradients = tuple[Sequence[Lazy | None], Mapping[str, Lazy]]  # of the inputs, and of the parameters by their port


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation with its settings.

    `terms` is the norm its result would have if the terms it sums did not cancel: rounding errs in proportion to it.
    `backward` takes the gradient of the output. `rows` says that the samples along the first axis do not mix, so that
    a large tensor may be computed in parts.
    """

    name: str
    kind: str  # as the precision ladder knows it
    forward: Callable[[Inputs, Parameters], Floats]
    settings: Mapping[str, Json] = field(default_factory=dict)
    terms: Callable[[Inputs, Parameters], float] = lambda inputs, parameters: 0.0
    backward: Callable[[Inputs, Parameters, Floats], Gradients] | None = None
    rows: bool = True

    def __str__(self) -> str:
        said = ", ".join(f"{key}={_short(item)}" for key, item in self.settings.items())
        return f"{self.name}({said})" if said else self.name


def as_floats(array: Array) -> Floats:
    """A tensor in float64."""
    return np.asarray(array, np.float64)


def squares(array: Array) -> float:
    """The sum of squares, of which norms are made."""
    flat = as_floats(array).reshape(-1)
    return float(np.dot(flat, flat))


def _short(item: Json) -> str:
    if isinstance(item, float):
        return f"{item:g}"
    return str(item)
