"""Tensors on their way into a file: what they are is known before their numbers are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arrays import as_array
from ..dtypes import ITEMSIZE, dtype_name, numpy_dtype
from ..errors import FormatError
from ..sites import shown
from .blocks import quantized_bytes
from .checkpoint import Array, Entry, count_elements
from .encoding import ENCODED, encode_blocks
from .rounding import FLOATS, Rounding, as_dtype

Loader = Callable[[], Any]


@dataclass(frozen=True)
class Tensor:
    """One tensor to write: its entry in the file, and how its numbers (or its quantized bytes) are had."""

    entry: Entry
    load: Callable[[], tuple[Array, Rounding]]
    source: str  # the dtype it comes from

    @property
    def name(self) -> str:
        """Its name in the file."""
        return self.entry.name


def plain_tensor(name: str, value: Any) -> Tensor:
    """A tensor from an array, or from a function that makes one and is called again when it is written."""
    place = f"tensor {shown(name)!r}"
    array = as_array(value() if callable(value) else value, place)
    dtype = dtype_name(array.dtype)
    if dtype is None:
        raise FormatError(f"{place}: dtype {array.dtype} is not one of {', '.join(ITEMSIZE)}; convert it")
    entry = Entry(name, dtype, array.shape, array.nbytes)
    if callable(value):
        del array
        return Tensor(entry, lambda: (_again(value, entry), Rounding()), dtype)
    return Tensor(entry, lambda: (array, Rounding()), dtype)


def in_dtype(tensor: Tensor, dtype: str) -> Tensor:
    """The same tensor in another dtype, converted when it is loaded."""
    if tensor.entry.dtype == dtype:
        return tensor
    place = f"tensor {shown(tensor.name)!r}"
    size = count_elements(place, tensor.entry.shape)

    def load() -> tuple[Array, Rounding]:
        array, before = tensor.load()
        converted, rounding = as_dtype(array, dtype, place)
        return converted, before + rounding

    return replace(tensor, entry=Entry(tensor.name, dtype, tensor.entry.shape, size * ITEMSIZE[dtype]), load=load)


def holdable(tensor: Tensor, dtypes: Iterable[str], widened: Mapping[str, str], format: str) -> Tensor:
    """The tensor in a dtype that a format has: its own, or the next one that holds it exactly."""
    dtype = tensor.entry.dtype
    if dtype in dtypes:
        return tensor
    if dtype in widened:
        return in_dtype(tensor, widened[dtype])
    raise FormatError(f"tensor {shown(tensor.name)!r}: {format} has no {dtype}; choose another format or --dtype")


def asked_for(tensor: Tensor, dtype: str | None) -> Tensor:
    """The tensor in the dtype the user asked for; only floating-point numbers follow."""
    if dtype is None or tensor.entry.quantized or tensor.entry.dtype not in FLOATS:
        return tensor
    if dtype in ENCODED:
        return quantized(tensor, dtype)
    if dtype not in FLOATS:
        raise FormatError(f"dtype {dtype!r} is not one of {', '.join((*FLOATS, *ENCODED))}; choose one of these")
    return in_dtype(tensor, dtype)


def quantized(tensor: Tensor, dtype: str) -> Tensor:
    """The tensor quantized when it is loaded. Vectors stay as they are: norms and biases are small and delicate."""
    shape = tensor.entry.shape
    if len(shape) < 2:
        return tensor
    place = f"tensor {shown(tensor.name)!r}"
    nbytes = quantized_bytes(dtype, count_elements(place, shape))

    def load() -> tuple[Array, Rounding]:
        array, before = tensor.load()
        data, rounding = encode_blocks(array, dtype, place)
        return data, before + rounding

    return replace(tensor, entry=Entry(tensor.name, dtype, shape, nbytes, quantized=True), load=load)


def stored_bytes(tensor: Tensor) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], Rounding]:
    """The bytes to write, little-endian and in C order, checked against what was announced."""
    array, rounding = tensor.load()
    entry = tensor.entry
    if not entry.quantized:
        array = np.ascontiguousarray(array, numpy_dtype(entry.dtype)).reshape(entry.shape)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if flat.nbytes != entry.nbytes:
        raise FormatError(
            f"tensor {shown(entry.name)!r}: {entry.nbytes} bytes were announced and {flat.nbytes} came; it changed "
            "while it was written"
        )
    return flat, rounding


def _again(value: Loader, entry: Entry) -> Array:
    array = as_array(value(), f"tensor {shown(entry.name)!r}")
    if array.shape != entry.shape or dtype_name(array.dtype) != entry.dtype:
        raise FormatError(
            f"tensor {shown(entry.name)!r}: was {entry.dtype}{list(entry.shape)} and is now "
            f"{array.dtype}{list(array.shape)}; it must not change while it is written"
        )
    return array
