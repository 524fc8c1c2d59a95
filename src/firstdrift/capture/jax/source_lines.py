"""The line of the model's own code that an equation comes from."""

from __future__ import annotations

import importlib.util
import linecache
import os
import sys
from pathlib import Path
from typing import Any

from ...program.calls import Place

LIBRARIES = ("jax", "jaxlib", "flax", "equinox", "optax", "jaxtyping")
OURS = str(Path(__file__).parents[2]) + os.sep


class SourceLines:
    """Lines of code of equations: the innermost that is neither JAX's, nor that of a library on it, nor ours."""

    def __init__(self, *, source: bool) -> None:
        self._source = source
        self._known: dict[tuple[str, int], Place | None] = {}
        specs = [importlib.util.find_spec(name) for name in LIBRARIES if name in sys.modules]
        self._foreign = (OURS, *(f"{folder}{os.sep}" for spec in specs if spec is not None
                                 for folder in spec.submodule_search_locations or ()))  # fmt: skip
        here = [path for path in (str(Path.cwd()), *sys.path) if path]
        self._roots = sorted({f"{Path(path).absolute()}{os.sep}" for path in here}, key=len, reverse=True)

    def of(self, info: Any) -> Place | None:
        """The line of an equation by its source information; None where that says nothing."""
        for frame in getattr(info.traceback, "frames", ()):
            key = frame.file_name, frame.line_num
            if key not in self._known:
                self._known[key] = self._place(frame)
            if self._known[key] is not None:
                return self._known[key]
        return None

    def _place(self, frame: Any) -> Place | None:
        file = frame.file_name
        if file.startswith((*self._foreign, "<")) or f"{os.sep}contextlib.py" in file or "functools.py" in file:
            return None
        root = next((root for root in self._roots if file.startswith(root)), None)
        text = linecache.getline(file, frame.line_num).strip()[:200] if self._source else ""
        name = Path(file).name if root is None else file[len(root) :].replace(os.sep, "/")
        return Place(name, frame.line_num, frame.function_name, text or None)
