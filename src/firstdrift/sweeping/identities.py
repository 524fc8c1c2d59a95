"""What tells one function from another that has the same name: its code, and the values it was made with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, PurePath, type(None), type(Ellipsis))


def identity_of(call: Callable[..., Any]) -> dict[str, Any]:
    """A function as a results file keeps it: its name, a digest of what it does, and its file's size and time.

    The file says nothing of a function that was typed into a session; its digest does.
    """
    inner: Any = call
    while isinstance(inner, functools.partial):
        inner = inner.func
    place = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    code = getattr(inner, "__code__", None) or getattr(_called(inner), "__code__", None)
    file = None if code is None else Path(code.co_filename)
    stat = file.stat() if file is not None and file.is_file() else None
    digest = blake2b(_seen(call, set()).encode("utf-8", "replace"), digest_size=8).hexdigest()
    return {"function": place, "code": digest, "file": stat and [stat.st_size, stat.st_mtime_ns]}


def _seen(value: Any, before: set[int]) -> str:
    """A value as text that is the same in every process; of what has no such text, its type alone."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if id(value) in before:
        return "again"
    before.add(id(value))
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{value.shape}{blake2b(value.tobytes(), digest_size=8).hexdigest()}"
    texts = [_seen(part, before) for part in _parts(value)]
    return f"{type(value).__qualname__}[{', '.join(sorted(texts) if isinstance(value, set | frozenset) else texts)}]"


def _parts(value: Any) -> list[Any]:
    """What a value is made of, as far as it matters to what a function does."""
    match value:
        case tuple() | list() | set() | frozenset():
            return list(value)
        case dict():
            return [part for item in value.items() for part in item]
        case CodeType():
            return [value.co_code, value.co_names, value.co_varnames, value.co_consts]
        case FunctionType():
            return [value.__code__, value.__defaults__, value.__kwdefaults__, *_around(value)]
        case MethodType():
            return [value.__func__, value.__self__]
        case functools.partial():
            return [value.func, value.args, value.keywords]
    return [_called(value), vars(value)] if _called(value) is not None and hasattr(value, "__dict__") else []


def _called(value: Any) -> FunctionType | None:
    """What is run when an object is called that is no function itself."""
    found = vars(type(value)).get("__call__")
    return found if isinstance(found, FunctionType) else None


def _around(function: FunctionType) -> list[Any]:
    """What a function reads of its surroundings: the variables it closes over, and the globals that it names.

    Those of a module with a file are left to the file.
    """
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            found.append(None)
    if Path(function.__code__.co_filename).is_file():
        return found
    known = function.__globals__
    named = [known[name] for name in function.__code__.co_names if name in known]
    return found + [one for one in named if isinstance(one, (*_PLAIN, FunctionType, tuple, list, dict, np.ndarray))]
