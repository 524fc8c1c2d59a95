"""Anything that holds numbers as a numpy array of its own dtype: lists, scalars, torch tensors by their bits."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SiteError
from .dtypes import LONG_NAMES, ML_NAMES, numpy_dtype


def as_array(value: Any, place: str) -> NDArray[np.generic]:
    """The array of a value; what cannot be one is refused by a sentence that names the place."""
    try:
        if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
            value = _from_torch(value)
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError, AttributeError) as error:
        why = str(error).split("\n")[0]
        raise SiteError(f"{place}: a {type(value).__name__} that is no array ({why}); give a numpy array") from None


def as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers in single precision, those of bfloat16 with what their NaN carry."""
    if array.dtype.name == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def wide(array: NDArray[Any]) -> NDArray[Any]:
    """The numbers of an array in double precision; complex ones stay complex."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def real_parts(array: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers in double precision; of complex ones, both parts, along one more axis."""
    found = np.ascontiguousarray(wide(array)).reshape(array.shape)
    return found.reshape(*found.shape, 1).view(np.float64) if found.dtype.kind == "c" else found


def shortest(number: Any) -> float:
    """A float32 as people write it: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(number)))


class _Memory:
    """Memory of a tensor's as numpy takes it. `Tensor.numpy` would forbid torch to resize the tensor from then on."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, tensor: Any, dtype: np.dtype[Any]) -> None:
        self._owner = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": dtype.str,
            "shape": tuple(tensor.shape),
            "strides": tuple([stride * dtype.itemsize for stride in tensor.stride()]),
            "data": (tensor.data_ptr(), False),
        }


def _from_torch(tensor: Any) -> Any:
    """A torch tensor's numbers; numpy has no bfloat16 and float8 of its own, so those go by their bits."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    short = LONG_NAMES[name] if name in ML_NAMES.values() else None
    if sys.modules["torch"].utils._python_dispatch.is_traceable_wrapper_subclass(tensor):  # its address is no address
        raise TypeError("it has no memory of its own")
    dtype = np.dtype(name) if short is None else np.dtype(f"u{numpy_dtype(short).itemsize}")
    array = np.asarray(_Memory(tensor, dtype)) if tensor.numel() else np.empty(tuple(tensor.shape), dtype)
    return array if short is None else array.view(numpy_dtype(short))
