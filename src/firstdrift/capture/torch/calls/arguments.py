"""Arguments of calls as the text that a program holds; tensors are told apart by whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii as quote
from math import isfinite, isnan
from typing import Any

import torch

from ....program.torch_values import DTYPE_NAMES

MOST_ITEMS = 4096  # of a list of plain numbers that is still an argument, not data

_DERIVED: tuple[Any, ...] = (bool, int, float, str, tuple, list)
Ref = Callable[[torch.Tensor], str]


def dtype_text(dtype: torch.dtype) -> str:
    """The name of a dtype in a program; torch's own for one that no trace holds."""
    return DTYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def number(item: float) -> str:
    """A float as JSON that reads back as the same one."""
    if isfinite(item):
        return repr(item)
    return '{"float":"nan"}' if isnan(item) else '{"float":"inf"}' if item > 0 else '{"float":"-inf"}'


def encoded(items: Any, ref: Ref) -> str:
    """Positional arguments, with commas between them."""
    return ",".join(
        [ref(item) if type(item) in _TENSORS else _WRITERS.get(type(item), _other)(item, ref) for item in items]
    )


def encoded_by_name(items: Mapping[str, Any], ref: Ref) -> str:
    """Keyword arguments, as the inside of an object."""
    return ",".join([f"{quote(name)}:{_WRITERS.get(type(item), _other)(item, ref)}" for name, item in items.items()])


def _sequence(items: Any, ref: Ref) -> str:
    if len(items) > MOST_ITEMS and not isinstance(items[0], torch.Tensor):
        return lost(f"{type(items).__name__} of {len(items)}")
    return f"[{encoded(items, ref)}]"


def _complex(item: complex, ref: Ref) -> str:
    return f'{{"complex":[{number(item.real)},{number(item.imag)}]}}'


def _slice(item: slice, ref: Ref) -> str:
    return f'{{"slice":[{encoded((item.start, item.stop, item.step), ref)}]}}'


def _map(item: Mapping[Any, Any], ref: Ref) -> str:
    if not all(type(key) is str for key in item):
        return lost(type(item).__name__)
    return f'{{"map":{{{encoded_by_name(item, ref)}}}}}'


def _other(item: Any, ref: Ref) -> str:
    """What is of a derived type, or nothing that a program can hold."""
    if isinstance(item, torch.Tensor):
        return ref(item)
    for kind in _DERIVED:
        if isinstance(item, kind):
            return _WRITERS[kind](item if kind is list else kind(item), ref)
    return lost(type(item).__name__)


def lost(what: str) -> str:
    """An argument that no program can hold."""
    return f'{{"lost":{quote(what)}}}'


_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_WRITERS: dict[type, Callable[[Any, Ref], str]] = {
    torch.Tensor: lambda item, ref: ref(item),
    torch.nn.Parameter: lambda item, ref: ref(item),
    type(None): lambda item, ref: "null",
    bool: lambda item, ref: "true" if item else "false",
    int: lambda item, ref: str(item),
    float: lambda item, ref: number(item),
    str: lambda item, ref: quote(item),
    complex: _complex,
    tuple: _sequence,
    list: _sequence,
    torch.Size: _sequence,
    torch.dtype: lambda item, ref: f'{{"dtype":"{dtype_text(item)}"}}',
    torch.device: lambda item, ref: f'{{"device":"{item}"}}',
    torch.layout: lambda item, ref: f'{{"layout":"{str(item).removeprefix("torch.")}"}}',
    torch.memory_format: lambda item, ref: f'{{"memory_format":"{str(item).removeprefix("torch.")}"}}',
    torch.Generator: lambda item, ref: "null",  # what it draws is stored
    slice: _slice,
    type(...): lambda item, ref: '{"ellipsis":true}',
    dict: _map,
}
