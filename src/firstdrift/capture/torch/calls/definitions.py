"""Numbers for what recurs in a program: types, modules, functions and lines of code, each defined once."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from ....core.strict_json import encode
from ....program.calls import Type
from ....program.written.line_templates import place_text, type_text
from .arguments import dtype_text
from .memory import Geometry
from .places import Places


class Definitions:
    """What a program has defined so far; `take` gives the definitions that are not written yet."""

    def __init__(self, *, source: bool) -> None:
        self._places = Places(source=source)
        self._types: dict[Any, int] = {}
        self._modules: dict[str, int] = {}
        self._functions: dict[str, int] = {}
        self._lines: dict[tuple[int, int], int] = {}
        self._new: list[str] = []

    def take(self) -> list[str]:
        """The definitions since this was asked last."""
        new, self._new = self._new, []
        return new

    def type(self, tensor: torch.Tensor, geometry: Geometry) -> int:
        """The number of a tensor's type."""
        key: Any = geometry[:3] if tensor.is_cpu else (*geometry[:3], tensor.device)
        number = self._types.get(key)
        if number is None:
            number = len(self._types)
            dtype, shape, strides = geometry[:3]
            known = None if _is_c_order(shape, strides) else tuple(strides)
            self._new.append(type_text(number, Type(dtype_text(dtype), tuple(shape), known, str(tensor.device))))
            self._types[key] = number
        return number

    def function(self, name: str) -> int:
        """The number of a function."""
        number = self._functions.get(name)
        return self._define("function", self._functions, name) if number is None else number

    def origin(self, owner: tuple[str, nn.Module] | None, frame: FrameType) -> str:
        """Where a call was made, as the end of its line: the module that runs and the line of the model's code."""
        said = ""
        if owner is not None:
            module = self._modules.get(owner[0])
            said = f',"module":{self._define("module", self._modules, owner[0]) if module is None else module}'
        where = self._places.of_caller(frame)
        return said if where is None else f'{said},"line":{self._line(*where)}'

    def _line(self, code: CodeType, line: int) -> int:
        key = (id(code), line)  # the code is kept by `Places`; its own hash is slow
        number = self._lines.get(key)
        if number is None:
            number = self._lines[key] = len(self._lines)
            self._new.append(place_text(number, self._places.described(code, line)))
        return number

    def _define(self, kind: str, known: dict[str, int], name: str) -> int:
        number = known[name] = len(known)
        self._new.append(encode({kind: [number, name]}))
        return number


def _is_c_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return not all(shape)
        expected *= size
    return True
