"""Sliding windows: which input elements an output element of a convolution or pool is computed from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

PAD_MODES = ("zeros", "reflect", "replicate", "circular")


@dataclass(frozen=True, slots=True)
class Axis:
    """The windows along one axis: output `o` sees the inputs `o * stride - before + k * dilation`."""

    kernel: int
    stride: int = 1
    before: int = 0
    dilation: int = 1
    mode: str = "zeros"

    def positions(self, outputs: Indices) -> Indices:
        """The input positions of some outputs, (outputs, kernel), beyond the borders where the padding is."""
        taps = np.arange(self.kernel) * self.dilation
        return np.asarray(outputs[:, None] * self.stride - self.before + taps[None, :], np.intp)

    def sources(self, outputs: Indices, size: int) -> Indices:
        """The input elements of some outputs, (outputs, kernel); -1 where there is zero padding."""
        return padded_index(self.positions(outputs), size, self.mode)


def padded_index(positions: Indices, size: int, mode: str) -> Indices:
    """What stands at a position, perhaps beyond the borders, of an axis: the index of an element, or -1 for zero."""
    inside = (positions >= 0) & (positions < size)
    if mode == "replicate":
        return np.clip(positions, 0, size - 1)
    if mode == "circular":
        return np.mod(positions, size)
    if mode == "reflect":
        period = max(2 * size - 2, 1)
        folded = np.mod(positions, period)
        return np.minimum(folded, period - folded) if size > 1 else np.zeros_like(positions)
    return np.where(inside, positions, -1)


def output_size(size: int, axis: Axis, after: int, ceil: bool = False) -> int:
    """How many outputs there are; with `ceil` a last window may overhang, but must begin inside the left padding."""
    room = size + axis.before + after - axis.dilation * (axis.kernel - 1) - 1
    count = (-(-room // axis.stride) if ceil else room // axis.stride) + 1
    if ceil and (count - 1) * axis.stride >= size + axis.before:
        count -= 1
    return max(count, 0)


def pad(x: Floats, axis: int, sources: Indices, fill: float = 0.0) -> Floats:
    """The elements of `x` along an axis that `sources` names, and `fill` where it says -1."""
    taken = np.take(x, np.maximum(sources, 0), axis=axis)
    outside = sources < 0
    if outside.any():
        shape = [1] * x.ndim
        shape[axis] = len(sources)
        taken = np.where(outside.reshape(shape), fill, taken)
    return np.asarray(taken)
