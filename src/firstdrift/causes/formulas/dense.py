"""Linear maps and convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .windows import Axis, output_size, pad

Floats = NDArray[np.float64]


def linear(x: Floats, weight: Floats, bias: Floats | None = None) -> Floats:
    """x W^T + b."""
    y = x @ weight.T
    return np.asarray(y if bias is None else y + bias)


def conv(
    x: Floats, weight: Floats, bias: Floats | None = None, stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, mode: str = "zeros",
    out: Sequence[int] | None = None,
) -> Floats:  # fmt: skip
    """A convolution over any number of axes (cross-correlation, as networks have it).

    `padding` is what stands before the first element; as much follows the last one unless `out` gives the output's
    size along each axis.
    """
    axes = axes_of(weight.shape[2:], stride, padding, dilation, mode)
    sizes = x.shape[2:]
    count = tuple(out or (output_size(size, axis, axis.before) for size, axis in zip(sizes, axes, strict=True)))
    width = weight.shape[1]
    y = np.zeros((len(x), groups, len(weight) // groups, int(np.prod(count))))
    kernels = weight.reshape(groups, len(weight) // groups, *weight.shape[1:])
    for tap, seen in _taps(x, axes, count):
        # One matrix product a tap needs no copy of the input for every tap at once.
        at: Any = (..., *tap)
        y += kernels[at] @ seen.reshape(len(x), groups, width, -1)
    y = y.reshape(len(x), len(weight), *count)
    return y if bias is None else y + bias.reshape(-1, *[1] * len(count))


def conv_transpose(
    x: Floats, weight: Floats, bias: Floats | None = None, stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0, output_padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Floats:  # fmt: skip
    """The transposed convolution; its weight is (in, out/groups, *kernel)."""
    space = weight.ndim - 2
    strides, cut, extra, dilations = (per_axis(one, space) for one in (stride, padding, output_padding, dilation))
    sizes, kernel, width = x.shape[2:], weight.shape[2:], weight.shape[1]
    whole = [
        (size - 1) * s + d * (k - 1) + 1 + e
        for size, s, d, k, e in zip(sizes, strides, dilations, kernel, extra, strict=True)
    ]
    y = np.zeros((len(x), groups, width, *whole))
    maps = weight.reshape(groups, len(weight) // groups, *weight.shape[1:]).swapaxes(1, 2)
    flat = x.reshape(len(x), groups, x.shape[1] // groups, -1)
    for tap in product(*map(range, kernel)):
        starts = [t * d for t, d in zip(tap, dilations, strict=True)]
        reached = (
            slice(start, start + (size - 1) * s + 1, s) for start, size, s in zip(starts, sizes, strides, strict=True)
        )
        source: Any = (..., *tap)
        target: Any = (..., *reached)
        y[target] += (maps[source] @ flat).reshape(len(x), groups, width, *sizes)
    # The output's own padding lies after the cut.
    kept: Any = (..., *(slice(c, size - c) for c, size in zip(cut, whole, strict=True)))
    y = np.asarray(y.reshape(len(x), groups * width, *whole)[kept])
    return y if bias is None else y + bias.reshape(-1, *[1] * space)


def per_axis(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """A setting for every axis; one number counts for all."""
    given = (value,) * count if isinstance(value, int) else tuple(value)
    return given * count if len(given) == 1 else given


def axes_of(
    kernel: Sequence[int], stride: int | Sequence[int], padding: int | Sequence[int], dilation: int | Sequence[int],
    mode: str = "zeros",
) -> tuple[Axis, ...]:  # fmt: skip
    """The windows along every axis."""
    settings = (per_axis(one, len(kernel)) for one in (stride, padding, dilation))
    return tuple(Axis(k, s, p, d, mode) for k, s, p, d in zip(kernel, *settings, strict=True))


def _taps(x: Floats, axes: Sequence[Axis], out: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Floats]]:
    first = x.ndim - len(axes)
    sources = [
        axis.sources(np.arange(count), size) for axis, count, size in zip(axes, out, x.shape[first:], strict=True)
    ]
    for tap in product(*(range(axis.kernel) for axis in axes)):
        seen = x
        for number, at in enumerate(tap):
            seen = pad(seen, first + number, sources[number][:, at])
        yield tap, seen
