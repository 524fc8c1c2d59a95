"""Arguments of a call as torch takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...core.strict_json import NON_FINITE
from ..calls import Ref
from .not_replayable import NotReplayableError
from .torch_dtypes import LIFTED, TORCH_DTYPES


def decoded(item: Any, value: Callable[[Ref], torch.Tensor], *, exact: bool) -> Any:
    """Arguments as torch takes them; `exact` with dtypes lifted."""
    if isinstance(item, Ref):
        return value(item)
    if isinstance(item, tuple | list):
        return [decoded(one, value, exact=exact) for one in item]
    if not isinstance(item, Mapping):
        return item
    ((tag, inner),) = item.items()  # an object has one key, which says what it is
    found = _TAGGED[tag](inner) if tag in _TAGGED else _lost(tag)
    return LIFTED.get(found, found) if exact and tag == "dtype" else found


def _lost(what: Any) -> Any:
    raise NotReplayableError(f"an argument was lost: {what}")


def _named(kind: type) -> Callable[[Any], Any]:
    """Look a name up among torch's constants of a kind, and nowhere else: torch imports modules that are asked for."""
    there = {str(var).removeprefix("torch."): var for var in vars(torch).values() if isinstance(var, kind)}
    return lambda name: there[name] if isinstance(name, str) and name in there else _lost(f"{kind.__name__} {name}")


_OTHER_DTYPES = _named(torch.dtype)
_TAGGED: dict[str, Callable[[Any], Any]] = {
    "lost": _lost,
    "dtype": lambda name: TORCH_DTYPES.get(name) or _OTHER_DTYPES(name),
    "device": lambda name: torch.device("meta" if name == "meta" else "cpu"),  # whatever it ran on
    "layout": _named(torch.layout),
    "memory_format": _named(torch.memory_format),
    "float": lambda text: NON_FINITE.get(text, float("nan")),
    "complex": lambda parts: complex(
        *(_TAGGED["float"](one["float"]) if isinstance(one, dict) else one for one in parts)
    ),
}
