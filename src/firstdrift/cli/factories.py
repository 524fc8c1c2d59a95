"""Functions of the user's own files, named as FILE.py:function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from ..errors import CaptureError, NotFoundError, SelectionError
from ..regular import check_regular


def load_function(place: str) -> Callable[[], Any]:
    """Import a file and find a function in it. What the file imports from beside itself is found there."""
    file, _, name = place.rpartition(":")
    path = Path(file)
    if not file or not name or path.suffix != ".py":
        raise SelectionError(f"{place!r} does not name a function; write FILE.py:function")
    if not path.exists():
        raise NotFoundError(f"{file}: there is no such file; write FILE.py:function")
    check_regular(path)
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[spec.name] = module  # as an import does, so that classes of the file know where they are from
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CaptureError(f"{file}: importing it raised {type(error).__name__}: {error}; mend the file") from error
    found = getattr(module, name, None)
    if not callable(found):
        functions = [key for key, item in vars(module).items() if callable(item) and not key.startswith("_")]
        raise SelectionError(f"{file}: has no function {name!r}; it has {', '.join(functions) or 'none'}")
    return found  # type: ignore[no-any-return]
