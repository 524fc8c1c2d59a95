"""Functions of the user's own, named alike in every command: FILE.py:function, or pkg.module:function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.regular import check_regular
from ..errors import CaptureError, NotFoundError, SelectionError

FORM = "FILE.py:function or pkg.module:function"


def load_function(place: str) -> Callable[..., Any]:
    """Import a file or a module and find a function in it. What it imports from beside itself is found there."""
    where, _, name = place.rpartition(":")
    if not where or not name.isidentifier():
        raise SelectionError(f"{place!r} does not name a function; write {FORM}")
    if where.endswith(".py"):
        _check_file(Path(where))
        module = _imported(where, lambda: _file(Path(where)))
    elif all(part.isidentifier() for part in where.split(".")):
        sys.path.insert(0, str(Path.cwd()))
        module = _imported(where, lambda: import_module(where))
    else:
        raise SelectionError(f"{where!r} is neither a file FILE.py nor a module; write {FORM}")
    found = getattr(module, name, None)
    if not callable(found):
        functions = [key for key, item in vars(module).items() if callable(item) and not key.startswith("_")]
        raise SelectionError(f"{where}: has no function {name!r}; it has {', '.join(functions) or 'none'}")
    return found  # type: ignore[no-any-return]


def call(place: str) -> Any:
    """What a function returns that takes no arguments."""
    function = load_function(place)
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise CaptureError(f"{place} raised {type(error).__name__}: {error}; mend it") from error


def _imported(where: str, load: Callable[[], ModuleType]) -> ModuleType:
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise CaptureError(f"{where}: importing it raised {type(error).__name__}: {error}; mend it") from error


def _check_file(path: Path) -> None:
    if not path.exists():
        raise NotFoundError(f"{path}: there is no such file; write {FORM}")
    check_regular(path)


def _file(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[spec.name] = module  # as an import does, so that classes of the file know where they are from
    spec.loader.exec_module(module)
    return module
