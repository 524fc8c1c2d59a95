"""Convolutions computed otherwise: flipped or re-laid kernels, other padding, other channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import formulas
from ..evidence import Evidence
from ..formulas import PAD_MODES, Axis
from ..hypotheses import Finding, Hypothesis
from ..layout.flattening import flattened
from ..precision.operands import Coarsening, coarsenings
from ..variants import Screen, Variant, findings, forward, parameter, reproduces, slight
from . import borders, frames, resized_addends, resized_images, resized_tables, row_maps
from .points import Points, gathered, points_of
from .pooling import pool, resized
from .settings import geometries
from .unpadded import unpadded

Floats = NDArray[np.float64]

COST = 2 * 10**9  # multiplications that the whole may cost


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, at some points of the output or at all of them."""

    x: Floats
    candidate_x: Floats
    weight: Floats
    bias: Floats | None
    axes: tuple[Axis, ...]
    groups: int
    out: tuple[int, ...]
    points: Points | None = None

    def __call__(self, x: Floats) -> Floats:
        """The output: (points, channels), or the whole tensor."""
        if self.points is None:
            stride, before, dilation = zip(
                *((axis.stride, axis.before, axis.dilation) for axis in self.axes), strict=True
            )
            settings = (stride, before, dilation, self.groups, self.axes[0].mode, self.out)
            return formulas.conv(x, self.weight, self.bias, *settings)
        seen = gathered(x, self.axes, self.points)
        patches = seen.reshape(len(seen), self.groups, -1)
        kernels = self.weight.reshape(self.groups, len(self.weight) // self.groups, -1)
        y = np.einsum("pgk,gok->pgo", patches, kernels, optimize=True).reshape(len(seen), -1)
        return np.asarray(y if self.bias is None else y + self.bias)

    def changed(self, **changes: Any) -> Floats:
        """The candidate's output if these fields were others."""
        one = replace(self, **changes)
        return one(one.candidate_x)

    def coarser(self, coarse: Coarsening) -> Floats:
        """The candidate's output with coarser operands."""
        weight = self.weight if coarse.weight is None else coarse.weight(self.weight)
        return replace(self, weight=weight)(
            self.candidate_x if coarse.input is None else coarse.input(self.candidate_x)
        )


def convolution(evidence: Evidence) -> Iterable[Finding]:
    """A convolution that uses its kernel, its padding or its channels otherwise."""
    evidence = unpadded(evidence)
    whole = _read(evidence)
    if whole is None:
        return
    points = points_of(evidence)
    part = replace(whole, points=points)
    seen = replace(evidence, expected=points.cut(evidence.expected), found=points.cut(evidence.found))
    cost = whole.weight[0].size * evidence.expected.size
    screen = Screen(part, seen, whole if cost <= COST else None)
    variants = [*_kernels(whole), *_channels(whole), *_paddings(whole), *(_coarse(whole) if slight(seen) else ())]
    yield from findings(evidence, screen, variants)


def _read(evidence: Evidence) -> Convolution | None:
    """The convolution that reproduces what was expected, by its stated settings or by those that fit."""
    weight, bias = parameter(evidence, "weight"), parameter(evidence, "bias")
    x = evidence.inputs.get("in.0", next(iter(evidence.inputs.values()), None))
    if not forward(evidence) or weight is None or weight.ndim < 3 or x is None or x.dtype.kind != "f":
        return None
    key = next(key for key, one in evidence.inputs.items() if one is x)
    seen = evidence.candidate_inputs.get(key, x)
    shape = evidence.expected.shape
    if x.ndim != weight.ndim or len(shape) != x.ndim or shape[:2] != (len(x), len(weight)) or seen.shape != x.shape:
        return None
    groups, rest = divmod(x.shape[1], weight.shape[1])
    if rest or not groups or len(weight) % groups:
        return None
    points = points_of(evidence)
    expected = points.cut(evidence.expected)
    usable = bias if bias is not None and bias.shape == weight.shape[:1] else None
    one = Convolution(
        np.asarray(x, np.float64), np.asarray(seen, np.float64), weight, usable, (), groups, shape[2:]
    )  # fmt: skip
    for axes in geometries(evidence.attrs, weight.shape[2:], x.shape[2:], shape[2:]):
        tried = replace(one, axes=axes, points=points)
        if reproduces(tried(tried.x), expected, evidence.noise):
            return replace(tried, points=None)
    return None


def _kernels(whole: Convolution) -> Iterator[Variant[Convolution]]:
    """The same numbers, arranged otherwise in the kernel."""
    weight, space = whole.weight, range(2, whole.weight.ndim)
    wide = [axis for axis in space if weight.shape[axis] > 1]
    for axes in ([wide] if len(wide) > 1 else []) + [[axis] for axis in wide]:
        name = "along all axes" if axes == wide else f"along axis {axes[0] - 2}"
        yield _with("conv-flip", f"the kernel is flipped {name}", weight=np.flip(weight, tuple(axes)))
    if len(space) == 2 and weight.shape[2] == weight.shape[3] > 1:
        turned = weight.swapaxes(2, 3)
        yield _with("conv-flip", "the two axes of the kernel are exchanged", weight=turned)
        yield _with("conv-flip", "the kernel is turned by a quarter", weight=np.flip(turned, 2))
        yield _with("conv-flip", "the kernel is turned by a quarter", weight=np.flip(turned, 3))
    if weight.shape[0] == weight.shape[1] > 1 and whole.groups == 1:
        yield _with(
            "conv-layout", "input and output channels of the kernel are exchanged", weight=weight.swapaxes(0, 1)
        )
    for name, order in _layouts(weight.ndim).items():
        for one, how in (
            (weight.transpose(order).reshape(weight.shape), "read as"),
            (_unread(weight, order), "laid out as"),
        ):
            sentence = f"the kernel is {how} {name} instead of output, input, space"
            yield _with("conv-layout", sentence, weight=one)


def _layouts(ndim: int) -> dict[str, tuple[int, ...]]:
    space = tuple(range(2, ndim))
    return {
        "output, space, input": (0, *space, 1),
        "space, input, output": (*space, 1, 0),
        "input, output, space": (1, 0, *space),
    }


def _unread(weight: Floats, order: tuple[int, ...]) -> Floats:
    """A kernel whose memory is in another order than its axes say."""
    return weight.reshape([weight.shape[axis] for axis in order]).transpose(np.argsort(order))


def _channels(whole: Convolution) -> Iterator[Variant[Convolution]]:
    """The input's channels, or those of the groups, in another order."""
    x = whole.candidate_x
    order = (0, *range(2, x.ndim), 1)
    for one in (x.transpose(order).reshape(x.shape), _unread(x, order)):
        yield _with(
            "conv-layout", "the input's channels are taken for its last axis or the other way round", candidate_x=one
        )
    if 1 < whole.groups < x.shape[1]:
        dealt = x.reshape(len(x), -1, whole.groups, *x.shape[2:]).swapaxes(1, 2).reshape(x.shape)
        yield _with("conv-layout", "the groups take interleaved channels", candidate_x=dealt)
    each = len(whole.weight) // whole.groups
    if whole.groups > 1 and each > 1:
        rows = np.arange(len(whole.weight)).reshape(each, whole.groups).T.ravel()
        yield Variant(
            "conv-layout", "the output's channels are taken in turn from the groups", partial(_regrouped, rows)
        )


def _regrouped(rows: NDArray[np.intp], one: Convolution) -> Floats:
    """Kernel o belongs to group o mod groups: computed in the order of the groups, then put back."""
    bias = None if one.bias is None else one.bias[rows]
    y = one.changed(weight=one.weight[rows], bias=bias)
    return np.take(y, np.argsort(rows), axis=1)


def _paddings(whole: Convolution) -> Iterator[Variant[Convolution]]:
    """The windows begin elsewhere, or something else stands beyond the borders."""
    mode = whole.axes[0].mode
    for other in PAD_MODES:
        if other != mode:
            sentence = f"the padding is of the kind {other} instead of {mode}"
            yield _with("padding", sentence, axes=tuple(replace(axis, mode=other) for axis in whole.axes))
    reach = max(max(axis.stride, axis.dilation * (axis.kernel - 1)) for axis in whole.axes)
    for shift in (one for one in range(-reach, reach + 1) if one):
        chosen = [tuple(range(len(whole.axes)))] + [(axis,) for axis in range(len(whole.axes)) if len(whole.axes) > 1]
        for moved in chosen:
            axes = tuple(
                replace(axis, before=axis.before + shift * (number in moved)) for number, axis in enumerate(whole.axes)
            )
            if any(axis.before < 0 for axis in axes):
                continue
            where = "" if len(moved) == len(axes) else f" along axis {moved[0]}"
            before, reference = axes[moved[0]].before, whole.axes[moved[0]].before
            sentence = f"{before} elements of padding stand before the first instead of {reference}{where}"
            yield Variant(
                "padding",
                sentence,
                methodcaller("changed", axes=axes),
                0,
                {"before": before, "reference_before": reference},
            )


def _coarse(whole: Convolution) -> Iterator[Variant[Convolution]]:
    for coarse in coarsenings(whole.weight):
        if coarse.input is None or coarse.label == "dtype-rounding":  # rows of an image are no units of quantisation
            yield Variant(coarse.label, coarse.sentence, methodcaller("coarser", coarse))


def _with(label: str, sentence: str, **changes: Any) -> Variant[Convolution]:
    return Variant(label, sentence, methodcaller("changed", **changes))


HYPOTHESES: tuple[Hypothesis, ...] = (
    convolution, pool, resized, *resized_tables.HYPOTHESES, *resized_addends.HYPOTHESES, *resized_images.HYPOTHESES,
    *borders.HYPOTHESES, *frames.HYPOTHESES, flattened, *row_maps.HYPOTHESES,
)  # fmt: skip
