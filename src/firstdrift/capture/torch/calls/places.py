"""The line of the model's own code that makes a call: the nearest that is neither torch's nor ours, nor that of a
library that writes axes for it."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType

from ....program.calls import Place

_OURS = ("firstdrift.capture", "firstdrift.live", "firstdrift.program", "firstdrift.core.taps")
_SKIPPED = ("torch", "contextlib", "functools", "einops", "einx", "opt_einsum")


class Places:
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
