"""Structures of tensors with some of them exchanged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from ..capture.torch.tensor_values import _entries

Exchange = Callable[[torch.Tensor], torch.Tensor]


def with_leaves(value: Any, port: str, exchanges: Mapping[str, Exchange]) -> Any:
    """The same structure, each tensor exchanged as its port says; ports are those that `leaves` gives.

    What can be written to is changed in place: a cache that a module fills must be the one that its caller holds.
    """
    if isinstance(value, torch.Tensor):
        return exchanges[port](value) if port in exchanges else value
    if isinstance(value, Mapping):
        return _with_entries(value, port, exchanges)
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", None) or range(len(value))
        items = [with_leaves(item, f"{port}.{key}", exchanges) for key, item in zip(names, value, strict=True)]
        if isinstance(value, list):
            value[:] = items
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value) if value.__dataclass_params__.frozen else value  # type: ignore[attr-defined]
        for field in fields(value):
            object.__setattr__(
                changed, field.name, with_leaves(getattr(value, field.name, None), f"{port}.{field.name}", exchanges)
            )
        return changed
    return value


def _with_entries(value: Mapping[Any, Any], port: str, exchanges: Mapping[str, Exchange]) -> Any:
    changed = value if isinstance(value, MutableMapping) else dict(value)
    for key, name in zip(list(value), list(_entries(value)), strict=True):
        item = with_leaves(value[key], f"{port}.{name}", exchanges)
        if item is not value[key]:
            changed[key] = item
    return changed
