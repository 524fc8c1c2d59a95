"""Operands that are coarser than the reference's: shorter floats, and integers with a step per tensor, row or group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ...dtypes import numpy_dtype

Floats = NDArray[np.float64]

SHORT = ("bf16", "f16", "tf32", "f8e4m3fn", "f8e5m2")
GROUPS = (32, 64, 128)
LEVELS = {8: 127, 4: 7}


@dataclass(frozen=True, slots=True)
class Coarsening:
    """A way to store the weight, the input or both more coarsely; `weight` gets rows of output channels."""

    label: str
    sentence: str
    weight: Callable[[Floats], Floats] | None = None
    input: Callable[[Floats], Floats] | None = None


def shortened(values: Floats, dtype: str) -> Floats:
    """Values rounded to a shorter float; tf32 keeps ten bits of float32's fraction."""
    if dtype == "tf32":
        bits = values.astype(np.float32).view(np.uint32)
        return np.asarray(((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32), np.float64)
    with np.errstate(all="ignore"):
        return np.asarray(values.astype(np.float32).astype(numpy_dtype(dtype)), np.float64)


def on_grid(rows: Floats, bits: int, symmetric: bool = True, largest: float | None = None) -> Floats:
    """Every row rounded to a grid of integers: as many steps up to its largest value, or from lowest to highest."""
    with np.errstate(all="ignore"):
        if symmetric:
            top = np.abs(rows).max(-1, keepdims=True) if largest is None else largest
            step = top / LEVELS[bits]
            return np.asarray(np.nan_to_num(np.rint(rows / step) * step))
        low, high = np.minimum(rows.min(-1, keepdims=True), 0.0), np.maximum(rows.max(-1, keepdims=True), 0.0)
        step = (high - low) / (2**bits - 1)
        zero = np.rint(-low / step)
        return np.asarray(np.nan_to_num((np.clip(np.rint(rows / step) + zero, 0, 2**bits - 1) - zero) * step))


def by_row(values: Floats, bits: int, symmetric: bool, size: int | None = None) -> Floats:
    """A step for every slice along the first axis, or for every `size` elements."""
    rows = values.reshape(len(values), -1) if size is None else values.reshape(-1, size)
    return on_grid(rows, bits, symmetric).reshape(values.shape)


def coarsenings(weight: Floats) -> Iterator[Coarsening]:
    """Everything to try for an operation with this weight, whose first axis is the output's."""
    for dtype in SHORT:
        short = partial(shortened, dtype=dtype)
        yield Coarsening("dtype-rounding", f"the weight is rounded to {dtype}", weight=short)
        yield Coarsening("dtype-rounding", f"the input is rounded to {dtype}", input=short)
        yield Coarsening("dtype-rounding", f"the weight and the input are rounded to {dtype}", short, short)
    largest = float(np.abs(weight).max()) if weight.size else 0.0
    sizes = [size for size in GROUPS if weight[:1].size % size == 0 and weight[:1].size > size]
    for bits, symmetric in product(LEVELS, (True, False)):
        kind = f"int{bits}" if symmetric else f"int{bits} with a zero point"
        each = partial(by_row, bits=bits, symmetric=symmetric)
        yield Coarsening("quantisation", f"the weight is rounded to {kind} per output channel", each)
        yield Coarsening("quantisation", f"the weight and the input are rounded to {kind}, row by row", each, each)
        for size in sizes:
            sentence = f"the weight is rounded to {kind} in groups of {size}"
            yield Coarsening("quantisation", sentence, partial(each, size=size))
    for bits in LEVELS:
        sentence = f"the weight is rounded to int{bits} with one step for all of it"
        yield Coarsening("quantisation", sentence, partial(on_grid, bits=bits, largest=largest))
