"""Normalisations: all are (x - mean) / sqrt(variance + eps) * weight + bias; they differ in where the two are taken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def normalised(x: Floats, axes: tuple[int, ...], eps: float, centre: bool = True) -> Floats:
    """Mean removed (with `centre`) and divided by the root of the mean square, over some axes."""
    shifted = x - x.mean(axes, keepdims=True) if centre else x
    return np.asarray(shifted / np.sqrt((shifted**2).mean(axes, keepdims=True) + eps))


def layer_norm(
    x: Floats, shape: Sequence[int], weight: Floats | None = None, bias: Floats | None = None, eps: float = 1e-5
) -> Floats:
    """Over the last axes, as many as `shape` has."""
    y = normalised(x, tuple(range(-len(shape), 0)), eps)
    return affine(y, weight, bias)


def rms_norm(x: Floats, weight: Floats | None = None, eps: float = 1e-6) -> Floats:
    """Over the last axes, as many as the weight has (one without a weight); the mean stays."""
    count = 1 if weight is None else weight.ndim
    return affine(normalised(x, tuple(range(-count, 0)), eps, centre=False), weight, None)


def batch_norm(
    x: Floats, running_mean: Floats | None = None, running_var: Floats | None = None, weight: Floats | None = None,
    bias: Floats | None = None, eps: float = 1e-5,
) -> Floats:  # fmt: skip
    """Per channel (axis 1): by the running statistics where they are given, else by those of the batch."""
    if running_mean is None or running_var is None:
        axes = (0, *range(2, x.ndim))
        y = normalised(x, axes, eps)
    else:
        y = (x - over_channels(running_mean, x.ndim)) / np.sqrt(over_channels(running_var, x.ndim) + eps)
    return affine(y, *(None if one is None else over_channels(one, x.ndim) for one in (weight, bias)))


def group_norm(
    x: Floats, groups: int, weight: Floats | None = None, bias: Floats | None = None, eps: float = 1e-5
) -> Floats:
    """Per sample and group of channels (axis 1)."""
    y = normalised(x.reshape(len(x), groups, -1), (2,), eps).reshape(x.shape)
    return affine(y, *(None if one is None else over_channels(one, x.ndim) for one in (weight, bias)))


def instance_norm(x: Floats, weight: Floats | None = None, bias: Floats | None = None, eps: float = 1e-5) -> Floats:
    """Per sample and channel."""
    return group_norm(x, x.shape[1], weight, bias, eps)


def affine(y: Floats, weight: Floats | None, bias: Floats | None) -> Floats:
    """y * weight + bias, either of which may be missing."""
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def over_channels(vector: Floats, ndim: int) -> Floats:
    """One number a channel, shaped to meet a tensor whose channels are axis 1."""
    return vector.reshape(-1, *[1] * (ndim - 2))
