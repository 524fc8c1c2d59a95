"""Arithmetic in coarser formats, as hardware does it, on numpy arrays."""

import ml_dtypes
import numpy as np


def tf32(array):
    """Rounded to the ten bits that matrix units keep of a float32."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000).astype(np.uint32).view(np.float32)


def to(dtype):
    return lambda array: array.astype(dtype).astype(np.float32)


f16, bf16 = to(np.float16), to(ml_dtypes.bfloat16)


def e4m3(array):
    """Eight bits have no room for small numbers: a scale for the whole tensor goes with them."""
    scale = np.abs(array).max() / 256
    return to(ml_dtypes.float8_e4m3fn)(array / scale) * scale


def grid(levels, group=None):
    """Weights on a grid from minus to plus `levels`, a scale for every output or for every group of inputs."""

    def rounded(weight):
        parts = weight.reshape(len(weight), -1, group or weight.shape[1])
        scale = np.abs(parts).max(-1, keepdims=True) / levels
        return (np.round(parts / scale) * scale).reshape(weight.shape).astype(np.float32)

    return rounded


def product(x, w):
    """Exact enough: no float32 rounding but the last."""
    return (x.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32)


def accumulated(x, w, rounding, chunk):
    """A product whose sum is rounded after every `chunk` terms."""
    total = np.zeros((len(x), len(w)), np.float32)
    for start in range(0, x.shape[1], chunk):
        total = rounding(total + product(x[:, start : start + chunk], w[:, start : start + chunk]))
    return total


def error(found, expected):
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected.astype(np.float64)))
