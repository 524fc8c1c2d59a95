"""A program with some of its calls made otherwise: what would have come out, had this line been another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .calls import Call, Step, reads


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
    left = tuple(one for one in step.functions if not any(one.first <= number <= one.last for number in changes))
    return replace(step, nodes=tuple(nodes), functions=left)
