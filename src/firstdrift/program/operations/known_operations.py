"""All entries of the library, and which of them a name means."""

from __future__ import annotations

import re
from functools import cache

from . import attention_formulas, function_formulas, layer_formulas, step_formulas
from .op_table import OPERATIONS as OPERATIONS
from .op_table import Operation

FORMULAS = (layer_formulas, function_formulas, attention_formulas, step_formulas)  # which enter theirs into the table
_IGNORED = frozenset({"torch", "nn", "functional", "aten", "default", "tensor", "jax", "lax", "flax", "linen", "onnx"})
_LEAST = 4  # letters of a name that may end a longer one, such as LlamaRMSNorm


@cache
def named(op: str) -> Operation | None:
    """The entry of a name: the name itself, or the longest that ends it."""
    plain, names = _plain(op), _names()
    ends = [name for name in names if len(name) >= _LEAST and plain.endswith(name)]
    return names.get(plain) or (names[max(ends, key=len)] if ends else None)


def is_exactly_named(op: str) -> bool:
    """Whether a name is an entry's own, and not that of somebody's variant of it."""
    return _plain(op) in _names()


def _plain(op: str) -> str:
    parts = [part for part in re.split(r"[.:/]", op) if part.lower() not in _IGNORED]
    return re.sub(r"[^a-z0-9]", "", parts[-1].lower()) if parts else ""


@cache
def _names() -> dict[str, Operation]:
    return {name.lower(): operation for operation in OPERATIONS for name in operation.names}
