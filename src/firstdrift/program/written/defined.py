"""What a program defines once and calls by number, and plain texts and lists: each validated where it is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Protocol, TypeVar

from ...core.dtypes import ITEMSIZE
from ...core.records import tensor_bytes
from ...core.sites import MAX_INDEX, MAX_NAME
from ...core.strict_json import NON_FINITE, Json
from ...errors import FormatError
from ..calls import Place, Type

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+){1,7}", re.ASCII)


class Defined(Protocol):
    """What a file has defined, by number."""

    types: list[Type]
    modules: list[str]
    functions: list[str]
    places: list[Place]


def type_of(said: list[Json]) -> Type:
    """The definition of a type."""
    if not 2 <= len(said) <= 4 or type(said[0]) is not str or type(said[1]) is not list:
        raise FormatError(f"type {said!r} is not [number, dtype, shape] with strides and device; write it so")
    dtype, shape, strides, device = (*said, None, None)[:4]
    text_of(dtype, "dtype")
    tensor_bytes("a tensor", dtype if dtype in ITEMSIZE else "u8", shape)
    if strides is not None:
        whole = type(strides) is list and len(strides) == len(shape)
        if not whole or not all(type(stride) is int and 0 <= stride <= MAX_INDEX for stride in strides):
            raise FormatError(f"strides {strides!r} are not whole numbers from 0, one a dimension; correct them")
    return Type(
        dtype, tuple(shape), None if strides is None else tuple(strides),
        "cpu" if device is None else text_of(device, "device"),
    )  # fmt: skip


def place_of(said: list[Json]) -> Place:
    """The definition of a line of code."""
    if len(said) not in (3, 4) or type(said[1]) is not int:
        raise FormatError(f"line {said!r} is not [number, file, line, function]; write it so")
    text = text_of(said[3], "source") if len(said) == 4 else None
    return Place(text_of(said[0], "file"), said[1], text_of(said[2], "function"), text)


def bytes_of(type_: Type) -> int:
    if type_.dtype not in ITEMSIZE:
        raise FormatError(f"a tensor of dtype {type_.dtype!r} cannot be stored; leave it out")
    return prod(type_.shape) * ITEMSIZE[type_.dtype]


def pick(there: Sequence[T], number: Json, what: str) -> T:
    if type(number) is not int or not 0 <= number < len(there):
        raise FormatError(f"{what} {number!r} is not one of the {len(there)} defined before; define it first")
    return there[number]


def dotted_name(said: Json, what: str) -> str:
    """The name of an operation or a function."""
    if type(said) is not str or len(said) > 256 or not _NAME.fullmatch(said):
        raise FormatError(f"{what} {str(said)[:80]!r} is no dotted name such as 'aten.add.Tensor'; write one")
    return said


def is_non_finite(said: Json) -> bool:
    return type(said) is str and said in NON_FINITE


def text_of(said: Json, what: str) -> str:
    if type(said) is not str or len(said) > MAX_NAME:
        raise FormatError(f"{what} {str(said)[:40]!r} is no text of at most {MAX_NAME} characters; write one")
    return said


def typed(item: Json, kind: type, what: str) -> Json:
    if type(item) is not kind:
        raise FormatError(f"{what!r} is {str(item)[:80]}; it must be {'a list' if kind is list else 'an object'}")
    return item
