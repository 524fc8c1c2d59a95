"""An equation of a jaxpr while its calls are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.dtypes import numpy_dtype
from ...program.calls import Ref, Type
from .program_lines import ProgramLines, Value

Rule = Callable[["Equation"], Value | list[Value]]


class UntranslatedError(Exception):
    """An equation that no call of ATen means."""


@dataclass(frozen=True)
class Equation:
    """An equation with its operands' values and types."""

    lines: ProgramLines
    name: str
    params: Mapping[str, Any]
    args: Sequence[Value]
    types: Sequence[Type]
    out: Sequence[Type]

    def call(self, op: str, args: Sequence[Any], shape: Sequence[int], dtype: str | None = None, **kwargs: Any) -> Ref:
        """A call with one result."""
        return self.lines.call(f"aten.{op}", args, [Type(dtype or self.out[0].dtype, tuple(shape))], **kwargs)

    def tensor(self, at: int) -> Ref:
        """An operand as a tensor, also where it is a number."""
        arg = self.args[at]
        if isinstance(arg, Ref):
            return arg
        return self.lines.constant(np.asarray(arg.value, numpy_dtype(self.types[at].dtype)), "a constant")

    def size(self, at: int = 0) -> tuple[int, ...]:
        """The shape of an operand."""
        return self.types[at].shape

    def reshaped(self, ref: Ref, shape: Sequence[int]) -> Ref:
        """A value in another shape."""
        type = self.lines.type(ref)
        if type.shape == tuple(shape):
            return ref
        return self.call("reshape.default", [ref, list(shape)], shape, type.dtype)

    def permuted(self, ref: Ref, axes: Sequence[int]) -> Ref:
        """A value with its axes in another order."""
        type = self.lines.type(ref)
        if list(axes) == sorted(axes):
            return ref
        return self.call("permute.default", [ref, list(axes)], [type.shape[axis] for axis in axes], type.dtype)

    def cast(self, ref: Ref, dtype: str) -> Ref:
        """A value in another dtype."""
        type = self.lines.type(ref)
        if type.dtype == dtype:
            return ref
        return self.lines.call("aten._to_copy.default", [ref], [type._replace(dtype=dtype)], dtype={"dtype": dtype})


def permute(lines: ProgramLines, ref: Ref, axes: Sequence[int]) -> Ref:
    """A value with its axes in another order, outside of any equation."""
    type = lines.type(ref)
    return Equation(lines, "transpose", {}, [], [], [type]).permuted(ref, axes)
