"""Changes of a program as data: other calls in the place of one, what stands for its results then, and a program
with some of its calls made otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .calls import Call, Ref, Step, reads

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


def with_changes(step: Step, changes: Mapping[int, Call]) -> Step:
    """The step with these calls in the place of its own; raises ValueError where that is no program.

    Cuts of the new step give what follows from the change, as long as they do not start from tensors recorded behind
    it. Its backward calls are those recorded, fed with the changed values; `Interpreter.derivative` is the other way.
    """
    nodes = list(step.nodes)
    for number, call in changes.items():
        before = nodes[number] if 0 <= number < len(nodes) else None
        if not isinstance(before, Call):
            raise ValueError(f"node {number} is no call of step {step.number}; change one that is")
        if len(call.results) != len(before.results):
            count = len(before.results)
            raise ValueError(f"the call in the place of node {number} gives {len(call.results)} tensors, not {count}")
        late = [ref.node for ref in reads(call) if ref.node >= number]
        if late:
            raise ValueError(f"the call in the place of node {number} reads node {late[0]}, which comes later")
        nodes[number] = call
    left = tuple(
        function
        for function in step.functions
        if not any(function.first <= number <= function.last for number in changes)
    )
    return replace(step, nodes=tuple(nodes), functions=left)
