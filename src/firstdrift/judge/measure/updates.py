"""What a step has added to weights, compared: element by element, and as a factor on all of it.

Storing a weight rounds its update, so that single elements say little of a small one. All of them together say more: a
learning rate that is off shows as a factor, whose error is that of one element over the root of how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import wide
from ...core.traces import Array

ROUNDINGS = 4.0  # by which two stored weights may differ, whatever was added to them
STEPS = 8.0  # roundings of an update while it is computed
LONGER = 4.0  # times the longest step of the reference, an element can be off by no legal one
NOISIER = 8.0  # times the error that rounding and gradients explain, that of an update may be
TURNED = 2.0  # times what gradients leave open, to one side in all elements
SIGMAS = 6.0  # standard errors by which a factor may be off by chance
AT_ONCE = 1 << 16  # elements that are looked at together

Both = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class Update:
    """How far two updates are apart: their relative `error`, and what rounding and gradients explain of it (`noise`);
    the `factor` of the one on the other, less one, and how large that has to be before anybody can tell (`open`);
    whether an element is off by more than any step is long (`is_gross`), and how many times as much as explains its own
    error the worst is (`element`)."""

    error: float
    noise: float
    factor: float
    open: float
    is_gross: bool
    element: float = 0.0

    @property
    def limit(self) -> float:
        """The error that noise explains."""
        return max(self.open, NOISIER * self.noise)

    def is_apart(self, slack: float = 0.0) -> bool:
        """Whether the two differ by more than rounding, gradients and something else (`slack`) explain."""
        is_other = abs(self.factor) > self.open + slack
        return self.is_gross or is_other or self.error > NOISIER * self.noise + slack

    @property
    def is_hidden(self) -> bool:
        """Whether an update that is not there at all would not be seen."""
        return self.open >= 1


def update_of(before: Both, after: Both, unit: float, gradients: Both | None = None) -> Update:
    """Compare what was added to weights, where all of them are finite; `unit` is the roundoff of the stored ones."""
    longest = max((float(np.max(np.abs(_added(before, after, 0, part)))) for part in _parts(after[0])), default=0.0)
    squares = product = errors = noises = open_squares = turned = 0.0
    is_gross, element = False, 0.0
    for part in _parts(after[0]):
        a, b = _added(before, after, 0, part), _added(before, after, 1, part)
        error, largest = b - a, np.maximum(np.abs(a), np.abs(b))
        stored = unit * _finite(np.abs(wide(after[0][part])))
        unsure = largest * (0.0 if gradients is None else _relative(gradients[0][part], gradients[1][part]))
        is_gross = is_gross or bool(np.any(np.abs(error) > ROUNDINGS * stored + LONGER * longest))
        rounding = (stored + unit * STEPS * np.abs(a)) ** 2
        explained = np.sqrt(rounding) + unsure
        element = max(element, float(np.max(np.abs(error[error != 0]) / explained[error != 0], initial=0.0)))
        squares += float(np.sum(np.abs(a) ** 2))
        errors += float(np.sum(np.abs(error) ** 2))
        noises += float(np.sum(rounding + unsure**2))
        product += float(np.sum((np.conj(a) * error).real))
        open_squares += float(np.sum(np.abs(a) ** 2 * rounding))
        turned += float(np.sum(np.abs(a) * unsure))  # which may all be to one side: a step that turns round is shorter
    if not squares:
        return Update(0.0, 0.0, 0.0, inf, is_gross, element)
    factor, least = product / squares, (SIGMAS * sqrt(open_squares) + TURNED * turned) / squares
    return Update(sqrt(errors / squares), sqrt(noises / squares), factor, least, is_gross, element)


def _added(before: Both, after: Both, side: int, part: Any) -> NDArray[Any]:
    """What one side added; nothing where a number of either is not finite."""
    sides = [(wide(one[part]), wide(old[part])) for one, old in zip(after, before, strict=True)]
    finite = np.logical_and.reduce([np.isfinite(array) for both in sides for array in both])
    with np.errstate(invalid="ignore"):
        return np.where(finite, sides[side][0] - sides[side][1], 0.0)


def _parts(array: Array) -> Iterator[Any]:
    if not array.ndim:
        yield ...
        return
    step = max(1, AT_ONCE // max(1, array[:1].size))
    for start in range(0, len(array) if array.size else 0, step):
        yield slice(start, start + step)


def _finite(array: NDArray[Any]) -> NDArray[Any]:
    return np.where(np.isfinite(array), array, 0.0)


def _relative(reference: Array, candidate: Array) -> NDArray[Any]:
    """How far two gradients are apart, for their size; a full step turns round where they have other signs."""
    a, b = wide(reference), wide(candidate)
    scale = np.maximum(np.abs(a), np.abs(b))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = _finite(np.abs(a - b) / scale)
    clipped: Array = np.clip(relative, 0.0, 2.0)
    return clipped
