"""Tensors as numpy arrays, without copying where that can be had; structures of tensors as named leaves."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...core.arrays import as_array
from ...core.dtypes import dtype_name, numpy_dtype
from ...core.records import NOT_COMPARABLE
from ...core.sites import check_name
from ...core.traces import Array
from ...errors import SiteError
from ...program.torch_values import DTYPE_NAMES

_counting = ContextVar("counting", default=False)
_LONGEST_KEY = 256  # characters of a key that can be a port


class NotComparableError(SiteError):
    """A tensor without values that could be stored; the message says why."""


def array_of(tensor: torch.Tensor) -> Array:
    """The numbers of a tensor as they are now: its own memory wherever numpy can look at it."""
    if isinstance(tensor, FakeTensor) and _counting.get():
        return np.broadcast_to(np.zeros((), _numpy_dtype(tensor.dtype)), tuple(tensor.shape))
    if is_spread(tensor):
        tensor = own_part(tensor)
    if why := without_values(tensor):
        raise NotComparableError(f"{NOT_COMPARABLE}{why}")
    try:
        array = as_array(tensor, "tensor")
    except SiteError as error:
        raise NotComparableError(f"{NOT_COMPARABLE}{error}") from None
    if dtype_name(array.dtype) is None:
        raise NotComparableError(f"{NOT_COMPARABLE}dtype {tensor.dtype}")
    return array


@contextmanager
def counting() -> Iterator[None]:
    """Fake tensors, which have a type and a shape and no values, count as zeros: for `fd.estimate` alone."""
    before = _counting.set(True)
    try:
        yield
    finally:
        _counting.reset(before)


def leaves(value: Any, port: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in a structure with its port: items by number, entries and fields by name."""
    if isinstance(value, torch.Tensor):
        yield port, value
        return
    if isinstance(value, Mapping):
        items = list(_entries(value).items())
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", None) or range(len(value))
        items = list(zip(map(str, names), value, strict=True))
    elif is_dataclass(value) and not isinstance(value, type):
        items = [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    else:
        return
    for key, item in items:
        yield from leaves(item, f"{port}.{key}")


def _entries(value: Mapping[Any, Any]) -> dict[str, Any]:
    """The entries of a mapping by name; by number where a key makes no name, or one that is taken."""
    found: dict[str, Any] = {}
    for number, (key, item) in enumerate(value.items()):
        name = str(key)
        try:
            check_name(name[: _LONGEST_KEY + 1])
        except SiteError:
            name = ""
        usable = 0 < len(name) <= _LONGEST_KEY and name not in found
        found[name if usable else f"#{number}"] = item
    return found


def outputs(value: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors a module returns; the port of a single one is `out`, however it is wrapped."""
    found = list(leaves(value, "out"))
    return [("out", found[0][1])] if len(found) == 1 else found


def version_of(tensor: torch.Tensor) -> int | None:
    """How often a tensor was written to; None where torch does not count (inference mode, lazy parameters)."""
    return None if is_lazy(tensor) or tensor.is_inference() else tensor._version


def takes_gradient(tensor: torch.Tensor) -> bool:
    """Whether a gradient could exist for a tensor of this type."""
    return tensor.is_floating_point() or tensor.is_complex()


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    if dtype not in DTYPE_NAMES:
        raise NotComparableError(f"not comparable: dtype {dtype}")
    return numpy_dtype(DTYPE_NAMES[dtype])


def is_spread(tensor: torch.Tensor) -> bool:
    """Whether a tensor is spread over the ranks of a run (FSDP2, tensor parallelism)."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def own_part(tensor: Any) -> torch.Tensor:
    """What this rank holds of a tensor that is spread over several; nobody is asked for the rest."""
    with torch.no_grad():
        found: torch.Tensor = tensor.to_local()
    return found


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor only counts what a trace would hold."""
    return isinstance(tensor, FakeTensor)


def without_values(tensor: torch.Tensor) -> str | None:
    """Why a tensor has no values that could be stored; None if it has."""
    if is_lazy(tensor):
        return "not initialized yet"
    if tensor.is_meta or is_fake(tensor):
        return "on the meta device, which holds shapes and no values"
    if tensor.layout != torch.strided:
        return f"a sparse tensor ({str(tensor.layout).removeprefix('torch.')}); make it dense to have it compared"
    if tensor.is_quantized:
        return "a quantized tensor; dequantize it to have it compared"
    if tensor.is_nested:
        return "a nested tensor; pad it to have it compared"
    if is_traceable_wrapper_subclass(tensor):
        return f"a {type(tensor).__name__}, which is made of other tensors; unwrap it to have it compared"
    return None
