"""Dtypes, arrays and other values of torch as a program holds them, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import numpy as np
import torch

from ..core.dtypes import ML_NAMES, NUMPY_NAMES, dtype_name
from ..core.strict_json import NON_FINITE, Json
from ..core.traces import Array
from .calls import NotReplayableError, Ref

_LONG = {"f": "float", "c": "complex", "i": "int", "u": "uint"}
TORCH_DTYPES: dict[str, torch.dtype] = {
    **{name: getattr(torch, f"{_LONG[name[0]]}{name[1:]}") for name in NUMPY_NAMES if name[0] in _LONG},
    **{short: getattr(torch, name) for short, name in ML_NAMES.items() if hasattr(torch, name)},
    "bool": torch.bool,
}
DTYPE_NAMES = {dtype: short for short, dtype in TORCH_DTYPES.items()}
LIFTED = {  # float64 and complex128 hold every number of the others
    dtype: torch.complex128 if dtype.is_complex else torch.float64
    for dtype in DTYPE_NAMES
    if dtype.is_complex or dtype.is_floating_point
}


def lifted(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in float64 if it is float, in complex128 if it is complex."""
    return tensor.to(LIFTED.get(tensor.dtype, tensor.dtype))


def tensor_of(array: Array) -> torch.Tensor:
    """An array as a tensor of its own."""
    short = dtype_name(array.dtype)
    if short in ML_NAMES:
        bits = np.uint8 if array.dtype.itemsize == 1 else np.int16
        return torch.from_numpy(np.array(array).view(bits)).view(TORCH_DTYPES[short])
    return torch.from_numpy(np.array(array))


def array_of(tensor: torch.Tensor) -> Array:
    """A tensor as numpy has it: floats as float64."""
    array: Array = lifted(tensor.detach()).resolve_conj().resolve_neg().contiguous().numpy()
    return array


def decoded(item: Any, value: Callable[[Ref], torch.Tensor], *, exact: bool) -> Any:
    """Arguments of a call as torch takes them, arrays among them as tensors; `exact` with dtypes lifted."""
    if isinstance(item, Ref):
        return value(item)
    if isinstance(item, tuple | list):
        return [decoded(one, value, exact=exact) for one in item]
    if isinstance(item, np.ndarray):
        return tensor_of(item)
    if not isinstance(item, Mapping):
        return item
    ((tag, inner),) = item.items()  # an object has one key, which says what it is
    found = _TAGGED[tag](inner) if tag in _TAGGED else _lost(tag)
    return LIFTED.get(found, found) if exact and tag == "dtype" else found


def plain(item: Any) -> Json:
    """An argument that is no tensor and no list as a program holds it."""
    if isinstance(item, float) and not isfinite(item):
        return {"float": "nan" if item != item else "inf" if item > 0 else "-inf"}
    if isinstance(item, torch.dtype):
        return {"dtype": DTYPE_NAMES.get(item) or str(item).removeprefix("torch.")}
    if isinstance(item, torch.device):
        return {"device": "cpu"}
    for kind in (torch.layout, torch.memory_format):
        if isinstance(item, kind):
            return {kind.__name__: str(item).removeprefix("torch.")}
    return item


def _lost(what: Any) -> Any:
    raise NotReplayableError(f"an argument was lost: {what}")


def _named(kind: type) -> Callable[[Any], Any]:
    """Look a name up among torch's constants of a kind, and nowhere else: torch imports modules that are asked for."""
    there = {str(var).removeprefix("torch."): var for var in vars(torch).values() if isinstance(var, kind)}
    return lambda name: there[name] if isinstance(name, str) and name in there else _lost(f"{kind.__name__} {name}")


_OTHER_DTYPES = _named(torch.dtype)
_TAGGED: dict[str, Callable[[Any], Any]] = {
    "lost": _lost,
    "dtype": lambda name: TORCH_DTYPES.get(name) or _OTHER_DTYPES(name),
    "device": lambda name: torch.device("meta" if name == "meta" else "cpu"),  # whatever it ran on
    "layout": _named(torch.layout),
    "memory_format": _named(torch.memory_format),
    "float": lambda text: NON_FINITE.get(text, float("nan")),
    "complex": lambda parts: complex(
        *(_TAGGED["float"](one["float"]) if isinstance(one, dict) else one for one in parts)
    ),
}
