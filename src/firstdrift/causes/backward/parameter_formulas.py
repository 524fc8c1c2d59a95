"""What the gradients of parameters are made of, and the mistakes that are made there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...strict_json import Json
from ...traces import Array
from ..agreement import Floats, floats
from ..formulas import conv_weight_gradient, normalised
from .backward_formulas import EPS, Backward
from .backward_windows import Geometry, geometries


@dataclass(frozen=True, slots=True)
class Used:
    """One use of a parameter: the gradient of the module's output, the module's input and settings."""

    gradient: Floats
    value: Array
    shape: tuple[int, ...]
    attrs: Mapping[str, Json] = field(default_factory=dict)
    buffers: Mapping[str, Array] = field(default_factory=dict)

    @property
    def rows(self) -> Floats:
        """The gradient, one row an item."""
        return self.gradient.reshape(-1, self.gradient.shape[-1])

    @property
    def inputs(self) -> Floats:
        """The input, one row an item."""
        return floats(self.value).reshape(-1, self.value.shape[-1])

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The rows of a table that were looked up."""
        return np.asarray(self.value, np.int64).ravel()

    def as_backward(self) -> Backward:
        """The same, as a backward pass starts from it."""
        return Backward(self.gradient, floats(self.value), {}, self.attrs)


Formula = Callable[[Used], Floats]


@dataclass(frozen=True, slots=True)
class Kind:
    """How a parameter's gradient is made, and how it is often mistaken."""

    name: str
    part: str
    formula: Formula
    mistakes: Mapping[str, Formula] = field(default_factory=dict)
    by_item: bool = True  # whether it is a sum over the first axis
    by_position: bool = True  # whether it is a sum over the second axis as well


def kinds(op: str, port: str, used: Used) -> Iterator[Kind]:
    """What a parameter's gradient may be made of, by what its shape and its module allow."""
    width, bias = used.gradient.shape[-1], port.startswith(("bias", "beta", "b_")) or port == "b"
    if used.value.dtype.kind in "iu":
        if len(used.shape) == 2 and used.shape[1] == width:
            yield Kind("embedding", "weight", _of_embedding, EMBEDDING)
        return
    if bias:
        yield from _biases(used)
        return
    if used.gradient.shape[:-1] == used.value.shape[:-1]:
        if used.shape == (width, used.value.shape[-1]):
            yield Kind("linear layer", "weight", _of_linear)
        if used.shape == (used.value.shape[-1], width):
            yield Kind("linear layer", "weight", lambda one: np.asarray(one.inputs.T @ one.rows))
    if len(used.shape) > 2 and used.gradient.ndim == used.value.ndim == len(used.shape):
        yield from _convolutions(used)
    if used.gradient.shape == used.value.shape and used.shape:
        yield from _norms(op.lower(), used)


def _of_linear(used: Used) -> Floats:
    return np.asarray(used.rows.T @ used.inputs, np.float64)


def _biases(used: Used) -> Iterator[Kind]:
    if used.gradient.ndim > 2 and used.shape == used.gradient.shape[1:2]:
        yield Kind("module", "bias", _over_channels, by_position=False)
    if used.shape and used.shape == used.gradient.shape[-len(used.shape) :]:
        by_position = used.gradient.ndim - len(used.shape) > 1
        yield Kind("module", "bias", lambda one: _over_items(one, one.gradient), by_position=by_position)


def _over_channels(used: Used) -> Floats:
    return np.asarray(np.moveaxis(used.gradient, 1, -1).reshape(-1, used.shape[0]).sum(0), np.float64)


def _over_items(used: Used, array: Floats) -> Floats:
    return np.asarray(array.reshape(-1, *used.shape).sum(0), np.float64)


def _of_embedding(used: Used) -> Floats:
    made = np.zeros(used.shape)
    np.add.at(made, used.tokens, used.rows)
    return made


def _overwritten(used: Used, order: int) -> Floats:
    made = np.zeros(used.shape)
    made[used.tokens[::order]] = used.rows[::order]
    return made


def _by_frequency(used: Used) -> Floats:
    counts = np.bincount(used.tokens, minlength=used.shape[0])
    return np.asarray(_of_embedding(used) / np.maximum(counts, 1)[: used.shape[0], None])


EMBEDDING: Mapping[str, Formula] = {
    "is overwritten by the last occurrence of a row that occurs more than once": partial(_overwritten, order=1),
    "has only the first occurrence of a row that occurs more than once": partial(_overwritten, order=-1),
    "is divided by how often each row occurs": _by_frequency,
}


def _convolutions(used: Used) -> Iterator[Kind]:
    kernel = used.shape[2:]
    if len(used.shape) != used.value.ndim or used.shape[0] != used.gradient.shape[1]:
        return
    groups, rest = divmod(used.value.shape[1], used.shape[1])
    for g in geometries(used.as_backward(), kernel) if groups and not rest else ():
        given = replace(g, groups=groups)
        right = partial(_of_conv, given)
        wide = tuple(axis for axis, n in enumerate(used.shape) if axis > 1 and n > 1)
        mistakes: dict[str, Formula] = {}
        if wide:
            mistakes["is flipped along the kernel"] = partial(_flipped, right, wide)
        if used.shape[0] == used.shape[1] > 1:
            mistakes["has input and output channels exchanged"] = partial(_exchanged, right)
        for axis in range(2, used.value.ndim):
            for by in (1, -1):
                word = f"takes the input {'before' if by > 0 else 'behind'} the one it belongs to, along axis {axis}"
                mistakes[word] = partial(_shifted, right, axis, by)
        for width in range(1, max(kernel)):
            mistakes[f"leaves out the {width} outermost outputs"] = partial(_bordered, right, width)
        yield Kind("convolution", "weight", right, mistakes, by_position=False)


def _of_conv(g: Geometry, used: Used) -> Floats:
    x = floats(used.value)
    return conv_weight_gradient(x, used.gradient, used.shape, g.stride, g.padding, g.dilation, g.groups)


def _flipped(right: Formula, axes: tuple[int, ...], used: Used) -> Floats:
    return np.flip(right(used), axes)


def _exchanged(right: Formula, used: Used) -> Floats:
    return right(used).swapaxes(0, 1)


def _shifted(right: Formula, axis: int, by: int, used: Used) -> Floats:
    """On the input moved by one element, nothing entering at the border."""
    moved = np.roll(floats(used.value), by, axis)
    edge = [slice(None)] * moved.ndim
    edge[axis] = slice(0, 1) if by > 0 else slice(-1, None)
    moved[tuple(edge)] = 0.0
    return right(replace(used, value=moved))


def _bordered(right: Formula, width: int, used: Used) -> Floats:
    kept = np.zeros_like(used.gradient)
    sizes = used.gradient.shape[2:]
    at = (slice(None), slice(None), *(slice(width, -width) if n > 2 * width else slice(0, 0) for n in sizes))
    kept[at] = used.gradient[at]
    return right(replace(used, gradient=kept))


def _norms(op: str, used: Used) -> Iterator[Kind]:
    """Weights of norms: over the last axes, or by channel."""
    said = used.as_backward().number("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps", default=-1.0)
    menu = (said,) if said >= 0 else EPS
    count, ndim = len(used.shape), used.value.ndim
    by_channel = ndim > 1 and used.shape == used.value.shape[1:2]
    if by_channel and any(word in op for word in ("batch", "group", "instance")):
        for eps in menu:
            for normal in _channel_norms(op, used, eps):
                yield Kind("norm", "weight", partial(_along_channels, normal), {
                    "takes its input, not the normalized one": partial(_along_channels, lambda one: floats(one.value)),
                    "is that of its bias": _over_channels,
                }, by_item="batch" not in op, by_position=False)  # fmt: skip
        return
    if used.shape != used.value.shape[-count:]:
        return
    axes = tuple(range(-count, 0))
    for eps in menu:
        for centred, name in ((True, "LayerNorm"), (False, "RMSNorm")):
            normal = partial(_normal, axes, eps, centred)
            other = partial(_normal, axes, eps, not centred)
            word = "without" if centred else "with"
            yield Kind(name, "weight", partial(_along, normal), {
                "takes its input, not the normalized one": partial(_along, lambda one: floats(one.value)),
                "takes the input less its mean, not divided": partial(_along, partial(_centred, axes)),
                f"takes the input {word} its mean taken off": partial(_along, other),
                "is that of its bias": lambda one: _over_items(one, one.gradient),
            }, by_position=ndim - count > 1)  # fmt: skip


def _normal(axes: tuple[int, ...], eps: float, centred: bool, used: Used) -> Floats:
    return normalised(floats(used.value), axes, eps, centred)


def _centred(axes: tuple[int, ...], used: Used) -> Floats:
    x = floats(used.value)
    return np.asarray(x - x.mean(axes, keepdims=True))


def _along(normal: Formula, used: Used) -> Floats:
    return _over_items(used, used.gradient * normal(used))


def _along_channels(normal: Formula, used: Used) -> Floats:
    return _over_channels(replace(used, gradient=used.gradient * normal(used)))


def _channel_norms(op: str, used: Used, eps: float) -> Iterator[Formula]:
    ndim, channels = used.value.ndim, used.shape[0]
    if "batch" in op:
        if {"running_mean", "running_var"} <= used.buffers.keys():
            yield partial(_by_running, eps)
        yield partial(_normal, (0, *range(2, ndim)), eps, True)
        return
    groups = channels if "instance" in op else int(used.as_backward().number("num_groups", "groups", default=0))
    for count in [groups] if groups and channels % groups == 0 else [1, channels]:
        yield partial(_by_group, count, eps)


def _by_running(eps: float, used: Used) -> Floats:
    shape = (-1, *[1] * (used.value.ndim - 2))
    mean, variance = (floats(used.buffers[port]).reshape(shape) for port in ("running_mean", "running_var"))
    return np.asarray((floats(used.value) - mean) / np.sqrt(variance + eps))


def _by_group(groups: int, eps: float, used: Used) -> Floats:
    x = floats(used.value)
    return normalised(x.reshape(len(x), groups, -1), (2,), eps).reshape(x.shape)
