"""The settings that a convolution may have: those that it states, and those that lead to the size of its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from ...strict_json import Json
from ..formulas import PAD_MODES, Axis

LARGEST_STRIDE, LARGEST_DILATION = 4, 3  # to be guessed


def geometries(
    attrs: Mapping[str, Json], kernel: tuple[int, ...], sizes: tuple[int, ...], out: tuple[int, ...]
) -> Iterator[tuple[Axis, ...]]:
    """What is stated first; then all settings that lead to the output's size, alike along all axes."""
    stated = [attrs.get(name) for name in ("stride", "padding", "dilation")]
    mode = attrs.get("padding_mode", "zeros")
    count = len(kernel)
    strides, paddings, dilations = (_numbers(one, count) for one in stated)
    if strides and dilations and mode in PAD_MODES:
        if stated[1] == "same":
            paddings = [d * (k - 1) // 2 for d, k in zip(dilations, kernel, strict=True)]
        elif stated[1] == "valid":
            paddings = [0] * count
        for each in (str(mode), *(one for one in PAD_MODES if one != mode)) if paddings else ():
            yield tuple(Axis(*one, each) for one in zip(kernel, strides, paddings, dilations, strict=True))
    for stride, dilation in product(range(1, LARGEST_STRIDE + 1), range(1, LARGEST_DILATION + 1)):
        for before in range(dilation * (max(kernel) - 1) + 1):
            axes = tuple(Axis(k, stride, min(before, dilation * (k - 1)), dilation) for k in kernel)
            fits = all(
                0 <= (count - 1) * stride - axis.before <= size + axis.before
                and abs((size + 2 * axis.before - dilation * (axis.kernel - 1) - 1) // stride + 1 - count) <= 1
                for axis, size, count in zip(axes, sizes, out, strict=True)
            )
            if fits:
                yield from (tuple(replace(axis, mode=one) for axis in axes) for one in PAD_MODES)


def _numbers(said: Json, count: int) -> list[int]:
    given = [said] * count if isinstance(said, int) else said if isinstance(said, list) else []
    return [one for one in given if isinstance(one, int)] * (count if len(given) == 1 else 1)
