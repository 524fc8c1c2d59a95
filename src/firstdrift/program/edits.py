"""Changes of a program as data: other calls in the place of one, and what stands for its results then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .calls import Call, Ref

ROUNDED = "round.to"  # the one operation that is not ATen's: the nearest number of a shorter dtype


@dataclass(frozen=True, slots=True)
class Fragment:
    """Calls that are made in the place of one. A reference to a node below zero is to one of them: -1 is the first.

    `results` stand for those of the call, in order; where none are named they are those of the last.
    """

    calls: tuple[Call, ...] = ()
    results: tuple[Ref, ...] = ()


Edit = Mapping[int, Fragment]  # by the node that is changed


def local(at: int, result: int = 0) -> Ref:
    """A result of a call of the same fragment, counted from 0."""
    return Ref(-1 - at, result)


def made_by(op: str, *args: object, **kwargs: object) -> Call:
    """A call of ATen as part of a fragment; arrays among its arguments are tensors that it is given."""
    return Call(op if op == ROUNDED else f"aten.{op}", args, kwargs, ())
