"""Numbers for what recurs in a program: types, and where in the model and in its code a call was made.

The line of code is the nearest that is neither torch's nor ours, nor that of a library that writes axes for the model.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from ....program.calls import Place, Type
from ....program.written.program_writer import ProgramWriter
from .arguments import dtype_text
from .memory import Geometry

_OURS = ("firstdrift.capture", "firstdrift.live", "firstdrift.program", "firstdrift.core.taps")
_SKIPPED = ("torch", "contextlib", "functools", "einops", "einx", "opt_einsum")


class Definitions:
    """What a program has defined so far, found again by what is at hand in a call."""

    def __init__(self, writer: ProgramWriter, *, source: bool) -> None:
        self._writer = writer
        self._places = _Places(source=source)
        self._types: dict[Any, int] = {}
        self._modules: dict[str, int] = {}
        self._lines: dict[tuple[int, int], int] = {}

    def type(self, tensor: torch.Tensor, geometry: Geometry) -> int:
        """The number of a tensor's type."""
        key: Any = geometry[:3] if tensor.is_cpu else (*geometry[:3], tensor.device)
        number = self._types.get(key)
        if number is None:
            dtype, shape, strides = geometry[:3]
            known = None if _is_c_order(shape, strides) else tuple(strides)
            type_ = Type(dtype_text(dtype), tuple(shape), known, str(tensor.device))
            number = self._types[key] = self._writer.type(type_)
        return number

    def origin(self, owner: tuple[str, nn.Module] | None, frame: FrameType) -> str:
        """Where a call was made, as the end of its line: the module that runs and the line of the model's code."""
        said = ""
        if owner is not None:
            module = self._modules.get(owner[0])
            if module is None:
                module = self._modules[owner[0]] = self._writer.module(owner[0])
            said = f',"module":{module}'
        where = self._places.of_caller(frame)
        return said if where is None else f'{said},"line":{self._line(*where)}'

    def _line(self, code: CodeType, line: int) -> int:
        key = (id(code), line)  # the code is kept by its file; its own hash is slow
        number = self._lines.get(key)
        if number is None:
            number = self._lines[key] = self._writer.line(self._places.described(code, line))
        return number


class _Places:
    """Lines of code by number, each with its file as a path inside its package or the working directory."""

    def __init__(self, *, source: bool) -> None:
        self._source = source
        # Code by its address, because its own hash is slow; it is kept, so that no other gets such an address.
        self._foreign: dict[int, CodeType] = {}  # code that is not the model's
        self._files: dict[int, tuple[CodeType, str]] = {}
        self._roots = _roots()

    def of_caller(self, frame: FrameType | None) -> tuple[CodeType, int] | None:
        """The code and the line that called, from this frame outwards."""
        foreign = self._foreign
        while frame is not None:
            code = frame.f_code
            if id(code) not in foreign and self._is_models(code, frame):
                return code, frame.f_lineno
            frame = frame.f_back
        return None

    def described(self, code: CodeType, line: int) -> Place:
        """A line as the program says it."""
        text = linecache.getline(code.co_filename, line).strip() if self._source else ""
        return Place(self._files[id(code)][1], line, code.co_qualname, text[:200] or None)

    def _is_models(self, code: CodeType, frame: FrameType) -> bool:
        if id(code) in self._files:
            return True
        module = str(frame.f_globals.get("__name__", ""))
        if module.split(".")[0] in _SKIPPED or module.startswith(_OURS):
            self._foreign[id(code)] = code
            return False
        self._files[id(code)] = (code, self._relative(code.co_filename))
        return True

    def _relative(self, file: str) -> str:
        for root in self._roots:
            if file.startswith(root):
                return file[len(root) :].replace(os.sep, "/")
        return Path(file).name


def _roots() -> list[str]:
    """Where packages lie and where we run, the longest first: a virtual environment may lie in a project."""
    installed = [path for key, path in sysconfig.get_paths().items() if key in ("purelib", "platlib", "stdlib")]
    found = {f"{Path(path).absolute()}{os.sep}" for path in (*installed, *sys.path, str(Path.cwd())) if path}
    return sorted(found, key=len, reverse=True)


def _is_c_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return not all(shape)
        expected *= size
    return True
