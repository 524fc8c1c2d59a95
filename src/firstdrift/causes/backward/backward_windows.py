"""The backward passes of convolutions and pools, right and as they are often mistaken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...strict_json import Json
from ..agreement import Floats
from ..formulas import Axis, avg_pool_gradient, bins_gradient, conv_input_gradient, max_pool_gradient
from .backward_formulas import Backward, Formula, Known

Sizes = tuple[int, ...]
LARGEST_STRIDE = 4  # to be guessed


@dataclass(frozen=True, slots=True)
class Geometry:
    """How windows slide."""

    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int = 1


def geometries(b: Backward, kernel: Sizes) -> Iterator[Geometry]:
    """The stated windows; where none are stated, those that make an output of the gradient's size."""
    count = len(kernel)
    stride, padding, dilation = (sizes(b.attrs.get(name), count) for name in ("stride", "padding", "dilation"))
    dilation = dilation or (1,) * count
    said = b.attrs.get("padding")
    if said == "same":
        padding = tuple(d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True))
    groups = int(b.number("groups", default=1))
    if stride and (padding or said == "valid"):
        yield Geometry(stride, padding or (0,) * count, dilation, groups)
        return
    size, out = b.value.shape[-count:], b.gradient.shape[-count:]
    for step in range(1, LARGEST_STRIDE + 1):
        around = [step * (m - 1) + k - n for n, m, k in zip(size, out, kernel, strict=True)]
        guessed = tuple(-(-max(one, 0) // 2) for one in around)
        ends = [(n + 2 * p - k) // step + 1 for n, p, k in zip(size, guessed, kernel, strict=True)]
        if tuple(ends) == tuple(out):
            yield Geometry((step,) * count, guessed, (1,) * count, groups)


def sizes(said: Json, count: int) -> Sizes:
    """A setting for every axis; empty where it is not stated in numbers."""
    given = [said] * count if isinstance(said, int) and not isinstance(said, bool) else said
    if not isinstance(given, list | tuple) or not all(isinstance(one, int) for one in given):
        return ()
    found = tuple(int(one) for one in given if isinstance(one, int))
    return found * count if len(found) == 1 else found


def known_windows(op: str, b: Backward) -> Iterator[Known]:
    """The right formulas of convolutions and pools that fit, likeliest first."""
    weight = b.parameter("weight")
    if weight is not None and weight.ndim > 2 and "transpose" not in op.lower():
        if weight.ndim == b.value.ndim == b.gradient.ndim and len(weight) == b.gradient.shape[1]:
            yield from _convolutions(b, weight)
        return
    if weight is None and "pool" in op.lower() and b.value.ndim > 2:
        yield from _pools(op.lower(), b)
    elif weight is None and b.value.ndim > 2 and b.gradient.size == np.prod(b.value.shape[:2]):
        yield _mean_of_all()


def _convolutions(b: Backward, weight: Floats) -> Iterator[Known]:
    space = tuple(range(2, weight.ndim))
    wide = tuple(axis for axis in space if weight.shape[axis] > 1)
    for g in geometries(b, weight.shape[2:]):
        if weight.shape[1] * g.groups != b.value.shape[1]:
            continue
        mistakes: dict[str, Formula] = {}
        if wide:
            mistakes["does not flip the kernel"] = partial(_conv, np.flip(weight, wide), g)
            for width in range(1, max(weight.shape[axis] for axis in wide)):
                mistakes[f"leaves out {width} elements at each border"] = partial(_bordered, weight, g, width, False)
                mistakes[f"leaves out the {width} outermost outputs"] = partial(_bordered, weight, g, width, True)
            for shift in (-1, 1):
                moved = tuple(p + shift for p in g.padding)
                if min(moved) >= 0:
                    other = Geometry(g.stride, moved, g.dilation, g.groups)
                    mistakes[f"is shifted by {-shift:+d} along the space"] = partial(_conv, weight, other)
        if weight.shape[0] == weight.shape[1] > 1 and g.groups == 1:
            sentence = "takes the kernel with input and output channels exchanged"
            mistakes[sentence] = partial(_conv, weight.swapaxes(0, 1), g)
        if len(wide) == 2 and weight.shape[2] == weight.shape[3]:
            mistakes["takes the kernel with its two axes exchanged"] = partial(_conv, weight.swapaxes(2, 3), g)
        yield Known("the convolution", partial(_conv, weight, g), mistakes, True, samples=True)


def _conv(weight: Floats, g: Geometry, b: Backward) -> Floats:
    return conv_input_gradient(b.gradient, weight, b.value.shape, g.stride, g.padding, g.dilation, g.groups)


def _bordered(weight: Floats, g: Geometry, width: int, before: bool, b: Backward) -> Floats:
    """Nothing from, or nothing for, what is nearer to a border than this."""
    if before:
        return _conv(weight, g, Backward(_inner(b.gradient, width), b.value))
    return _inner(_conv(weight, g, b), width)


def _inner(array: Floats, width: int) -> Floats:
    kept = np.zeros_like(array)
    at = (slice(None), slice(None), *(slice(width, -width) if n > 2 * width else slice(0, 0) for n in array.shape[2:]))
    kept[at] = array[at]
    return kept


def _pools(name: str, b: Backward) -> Iterator[Known]:
    largest, out = "max" in name, b.gradient.shape[2:]
    if "adaptive" in name or "bins" in name or "global" in name:
        yield Known(
            "the adaptive pool", lambda b: bins_gradient(b.value, b.gradient, out, largest), {}, True, samples=True
        )
        return
    kernel = sizes(b.attrs.get("kernel_size", b.attrs.get("kernel")), b.value.ndim - 2)
    if not kernel or len(out) != len(kernel):
        return
    stride = sizes(b.attrs.get("stride"), len(kernel)) or kernel
    padding = sizes(b.attrs.get("padding"), len(kernel)) or (0,) * len(kernel)
    dilation = sizes(b.attrs.get("dilation"), len(kernel)) or (1,) * len(kernel)
    counted = bool(b.attrs.get("count_include_pad", b.attrs.get("count_padding", True)))

    def mean(b: Backward, count_pad: bool = counted) -> Floats:
        return avg_pool_gradient(b.value.shape, b.gradient, kernel, stride, padding, count_pad)

    def chosen(b: Backward, ties: str = "first") -> Floats:
        return max_pool_gradient(b.value, b.gradient, kernel, stride, padding, dilation, ties)

    def corner(b: Backward) -> Floats:
        """The first element of each window that lies inside."""
        descending = -np.arange(b.value[0, 0].size, dtype=np.float64).reshape(b.value.shape[2:])
        return chosen(b.on(np.broadcast_to(descending, b.value.shape)))

    if largest:
        yield Known("the max pool", chosen, {
            "gives the gradient to the first element of each window": corner,
            "gives the gradient to the last of tied elements": partial(chosen, ties="last"),
            "gives the gradient to all tied elements": partial(chosen, ties="all"),
            "spreads the gradient over the window": mean,
            "gives the gradient to the smallest element": lambda b: chosen(b.on(-b.value)),
        }, True, samples=True)  # fmt: skip
    else:
        windows = [Axis(k, s, p) for k, s, p in zip(kernel, stride, padding, strict=True)]
        mistakes: dict[str, Formula] = {
            "gives the gradient to the largest element": chosen,
            "gives the gradient to the first element of each window": corner,
        }
        if any(axis.before for axis in windows):
            mistakes["divides by another count at the borders"] = partial(mean, count_pad=not counted)
        yield Known("the average pool", mean, mistakes, True, samples=True)


def _mean_of_all() -> Known:
    """The mean over all of the space, whatever its result is shaped like."""

    def spread(b: Backward) -> Floats:
        count = float(np.prod(b.value.shape[2:]))
        one = b.gradient.reshape(*b.value.shape[:2], *[1] * (b.value.ndim - 2))
        return np.asarray(np.broadcast_to(one / count, b.value.shape))

    return Known("the mean over the space", spread, {}, samples=True)
