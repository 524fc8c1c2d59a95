"""Calls, values and lines as a reader of the model's code knows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from ..program.calls import Call, Ref
from ..program.reruns import Rerun
from .around import place_of
from .changes.several import told


def call_told(rerun: Rerun, number: int) -> str:
    """A call with what it is given."""
    call = rerun.written(number)
    name = (call.function if isinstance(call, Call) else call.op) or call.op.split(".")[1]
    parts = name.split(".")
    name = parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]
    return f"{name.strip('_')}({', '.join(_arguments(rerun, call))})"


def _arguments(rerun: Rerun, call: Any) -> Iterator[str]:
    for one in call.args:
        if isinstance(one, Ref):
            yield told(rerun, one) if one in rerun.refs else "a tensor"
        elif isinstance(one, int | float | str | bool) or one is None:
            yield str(one)
        elif isinstance(one, tuple | list) and all(isinstance(item, int) for item in one):
            yield str(list(one))
        else:
            yield "..."
    for name, item in call.kwargs.items():
        if isinstance(item, int | float | str | bool):
            yield f"{name}={item}"


def line_told(rerun: Rerun, number: int) -> str | None:
    """The file and the line of a call; of one that differentiates, those of the forward call."""
    place = place_of(rerun, number)
    return None if place is None else f"{PurePath(place.file).name}:{place.line}"
