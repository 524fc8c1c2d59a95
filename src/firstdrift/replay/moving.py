"""What happens between modules: sums, products and joins of what was made before, and changes of shape."""

from __future__ import annotations

from math import sqrt

import numpy as np

from .operation import Floats, Gradients, Inputs, Operation, Parameters, squares

Sizes = tuple[int, ...]


def reshaped(shape: Sizes, axes: Sizes | None = None) -> Operation:
    """The same numbers in another shape, the first axis left out of `shape`; their axes exchanged before it."""

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        x = inputs[0]
        x = x if axes is None else x.transpose(axes)
        return x.reshape(len(x), *shape) if shape != x.shape[1:] else x

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        before = inputs[0].shape
        if axes is None:
            return [gradient.reshape(before)], {}
        moved = gradient.reshape([before[axis] for axis in axes])
        return [moved.transpose(np.argsort(axes))], {}

    settings = {} if axes is None else {"axes": list(axes)}
    name = "identity" if axes is None else "transpose"
    return Operation(name, "move", forward, settings, backward=backward, rows=axes is None or axes[0] == 0)


def anew(shape: Sizes) -> Operation:
    """The same numbers in another shape, whatever becomes of the first axis."""

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        return inputs[0].reshape(shape)

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        return [gradient.reshape(inputs[0].shape)], {}

    return Operation("reshape", "move", forward, {"shape": list(shape)}, backward=backward, rows=False)


def selected(axis: int, index: int) -> Operation:
    """One element along an axis, such as the last step of a sequence."""

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        return np.asarray(inputs[0].take(index, axis))

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        into = np.zeros(inputs[0].shape)
        into[(slice(None),) * axis + (index,)] = gradient
        return [into], {}

    return Operation("select", "move", forward, {"axis": axis, "index": index}, backward=backward, rows=axis != 0)


def part(axis: int, start: int, stop: int) -> Operation:
    """A stretch along an axis, such as one of three blocks."""
    cut = (slice(None),) * axis + (slice(start, stop),)

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        return inputs[0][cut]

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        into = np.zeros(inputs[0].shape)
        into[cut] = gradient
        return [into], {}

    settings = {"axis": axis, "start": start, "stop": stop}
    return Operation("slice", "move", forward, settings, backward=backward, rows=axis != 0)


def mean(axis: int) -> Operation:
    """The mean along an axis."""

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        return inputs[0].mean(axis)  # type: ignore[no-any-return]

    def terms(inputs: Inputs, parameters: Parameters) -> float:
        return sqrt(squares(inputs[0])) / float(inputs[0].shape[axis])

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        n = inputs[0].shape[axis]
        return [np.repeat(np.expand_dims(gradient / n, axis), n, axis)], {}

    return Operation("mean", "add", forward, {"axis": axis}, terms, backward, rows=axis != 0)


def added(factors: tuple[float, ...], *, rows: bool = False) -> Operation:
    """The sum of everything, each times its factor: residual streams."""

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        total = factors[0] * inputs[0]
        for factor, item in zip(factors[1:], inputs[1:], strict=True):
            total = total + factor * item
        return total

    def terms(inputs: Inputs, parameters: Parameters) -> float:
        parts = [squares(factor * item) for factor, item in zip(factors, inputs, strict=True)]
        return float(np.sqrt(np.sum(parts)))

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        return [factor * _like(gradient, item.shape) for factor, item in zip(factors, inputs, strict=True)], {}

    settings = {} if all(factor == 1.0 for factor in factors) else {"factors": list(factors)}
    return Operation("add", "add", forward, settings, terms, backward, rows=rows)


def multiplied(*, rows: bool = False) -> Operation:
    """The product of two tensors, such as a gate and what it lets through."""

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        return inputs[0] * inputs[1]

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        return [_like(gradient * inputs[1], inputs[0].shape), _like(gradient * inputs[0], inputs[1].shape)], {}

    return Operation("multiply", "add", forward, backward=backward, rows=rows)


def joined(axis: int) -> Operation:
    """Tensors behind each other along an axis."""

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        return np.concatenate(list(inputs), axis)

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        ends = np.cumsum([item.shape[axis] for item in inputs])[:-1]
        return list(np.split(gradient, ends, axis)), {}

    return Operation("concat", "move", forward, {"axis": axis}, backward=backward, rows=axis != 0)


def _like(gradient: Floats, shape: Sizes) -> Floats:
    """A gradient summed over the axes along which its tensor was repeated."""
    while gradient.ndim > len(shape):
        gradient = gradient.sum(0)
    for axis, n in enumerate(shape):
        if n == 1 and gradient.shape[axis] != 1:
            gradient = gradient.sum(axis, keepdims=True)
    return gradient
