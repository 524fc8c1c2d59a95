"""Pairs of tensors that are hard on a kernel: every dtype, odd shapes and strides, every bit pattern."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]

NATIVE = [np.dtype(t) for t in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)]
FLOATS = NATIVE + [
    np.dtype(t)
    for t in (
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
    )
]
COMPLEX = [np.dtype(t) for t in (np.complex64, np.complex128)]
INTEGERS = [np.dtype(t) for t in ["i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]]

SHAPES: list[tuple[int, ...]] = [
    (),
    (0,),
    (3, 0, 2),
    (1,),
    (3,),
    (63,),
    (64,),
    (65,),
    (1, 1, 7),
    (5, 1, 9),
    (2, 3, 4, 5),
    (300, 2),
    (131, 10),
    (64, 64),
    (65, 65),
    (66, 129),
    (3, 20, 7, 7),
    (200, 70),
    (2, 1000),
]

shapes = st.one_of(
    st.sampled_from(SHAPES),
    st.lists(st.integers(0, 40), max_size=3).map(tuple),
    st.tuples(st.integers(0, 5000)),
)
seeds = st.integers(0, 2**32 - 1)


def random_bits(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Every bit pattern is as likely as any other: NaNs of both kinds, infinities, subnormals, both zeros."""
    size = int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).reshape(shape).copy()


def ordinary(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Normally distributed, with a few zeros of either sign; integers over a small range."""
    if dtype.kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    values = rng.standard_normal(shape)
    values[rng.random(shape) < 0.02] = -0.0
    values[rng.random(shape) < 0.02] = 0.0
    if dtype.kind == "c":
        return (values + 1j * rng.standard_normal(shape)).astype(dtype)
    return values.astype(dtype)


def nudged(rng: np.random.Generator, array: Array) -> Array:
    """A copy with some elements a few representable numbers off."""
    out = array.copy()
    if out.dtype == bool:
        return out ^ (rng.random(out.shape) < 0.1)
    flat = out.reshape(-1)
    bits = flat.view(f"u{flat.real.itemsize}")
    with np.errstate(over="ignore"):
        bits += (rng.integers(0, 4, bits.shape) * (rng.random(bits.shape) < 0.5)).astype(bits.dtype)
    return out


def poisoned(rng: np.random.Generator, array: Array) -> Array:
    """A copy with NaNs and infinities strewn in."""
    out = array.copy()
    if out.dtype.kind in "iub":
        return out
    with np.errstate(all="ignore"):
        for value in (np.nan, np.inf, -np.inf):
            out[rng.random(out.shape) < 0.03] = value
    return out


def flipped(rng: np.random.Generator, array: Array) -> Array:
    """A copy with some signs changed."""
    if array.dtype.kind in "ub":
        return nudged(rng, array)
    with np.errstate(all="ignore"):
        return np.where(rng.random(array.shape) < 0.1, -array, array).astype(array.dtype)


def outlier(rng: np.random.Generator, array: Array) -> Array:
    """A copy with one element far off."""
    out = array.copy()
    if out.size:
        out.reshape(-1)[rng.integers(out.size)] = 1 if out.dtype == bool else 111
    return out


CHANGES = [lambda rng, array: array.copy(), nudged, poisoned, flipped, outlier]


@st.composite
def pairs(draw: st.DrawFn, dtypes: list[np.dtype[Any]]) -> tuple[Array, Array]:
    """Two tensors of one dtype and shape that differ in one of many ways."""
    rng = np.random.default_rng(draw(seeds))
    dtype, shape = draw(st.sampled_from(dtypes)), draw(shapes)
    make = draw(st.sampled_from([ordinary, random_bits]))
    reference = np.asarray(make(rng, dtype, shape))
    if draw(st.booleans()):
        reference = poisoned(rng, reference)
    if draw(st.integers(0, 5)) == 0:
        return reference, np.asarray(make(rng, dtype, shape))
    return reference, np.asarray(draw(st.sampled_from(CHANGES))(rng, reference))


def restride(array: Array, how: str) -> Array:
    """The same values in another memory layout."""
    if how == "fortran":
        return array.copy(order="F")
    if how == "reversed":
        return array[..., ::-1].copy()[..., ::-1] if array.ndim else array
    if how == "strided":
        wide = np.zeros((*array.shape, 3), array.dtype)
        wide[..., 1] = array
        return wide[..., 1]
    if how == "permuted":
        middle_first = np.moveaxis(array, array.ndim // 2, 0) if array.ndim else array
        return np.moveaxis(middle_first.copy(), 0, array.ndim // 2) if array.ndim else array
    if how == "unaligned":
        raw = np.zeros(array.nbytes + 1, np.uint8)
        out = raw[1:].view(array.dtype).reshape(array.shape)
        out[...] = array
        return out
    if how == "read-only":
        out = array.copy()
        out.flags.writeable = False
        return out
    return array


def moderate(array: Array) -> Array:
    """The array with float64 values whose squares an oracle cannot hold replaced by 1."""
    if array.dtype != np.float64:
        return array
    magnitude = np.abs(np.where(np.isfinite(array), array, 0.0))
    return np.where((magnitude != 0) & ((magnitude < 1e-100) | (magnitude > 1e100)), 1.0, array)


LAYOUTS = ["contiguous", "fortran", "reversed", "strided", "permuted", "unaligned", "read-only"]
