"""Numbers that a run read out of its tensors, and which of them a replay depends on.

A number read (`.item()`, `bool(...)`, `.tolist()`, `.numpy()`) goes where no program follows it: into a branch, a size,
an index, a constant of a later call. So a call may depend on every number that was read before the call was decided:

- A call of the model's own code was decided where it stands. What a module reads stays in its code and in that of the
  modules inside it; other code depends on it where one of the numbers stands among a call's arguments.
- A call that autograd makes was decided where its forward call stands: nothing that is read later changes it, a logged
  loss least of all. Code of its own (custom functions, hooks, recomputation) may read in the backward pass.
- An optimizer's calls were decided by its settings, which are on record, and by what it reads itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..core.strict_json import Json
from .calls import Call, Place, Ref, Step, reads, refs

_COMMON = (-1, 0, 1)  # numbers that stand in calls for many reasons


@dataclass(frozen=True, slots=True)
class NumberRead:
    """Numbers that were read before the node `before` was made; `call` computes them where a call did."""

    before: int
    of: tuple[Ref, ...]
    number: Json
    part: str
    module: str | None
    place: Place | None
    call: Call | None


class Control:
    """The numbers that a step read."""

    def __init__(self, step: Step) -> None:
        self._step = step

    @cached_property
    def _all(self) -> list[NumberRead]:
        return sorted(numbers_read(self._step), key=lambda one: one.before)

    def behind(self, nodes: Sequence[int]) -> tuple[NumberRead, ...]:
        """The numbers that a part of the program depends on, in the order in which they were read."""
        if not self._all:
            return ()
        calls = [(number, node) for number in nodes if isinstance(node := self._step.nodes[number], Call)]
        return tuple(one for one in self._all if any(self._depends(number, call, one) for number, call in calls))

    def _depends(self, number: int, call: Call, read: NumberRead) -> bool:
        if call.part == "optimizer":
            return read.part == "optimizer" and read.before <= number
        if not _is_autograds(call):
            return read.before <= number and self._reaches(read, number, call)
        if read.part == "backward" and read.before <= number:
            return True
        forward = None if call.of is None else self._step.nodes[call.of]
        if call.of is None or not isinstance(forward, Call):  # whose, is not known; but not from where a number came
            return read.part == "forward" and bool(_numbers(read.number) & _numbers(call.args))
        return self._depends(call.of, forward, read)

    def _reaches(self, read: NumberRead, number: int, call: Call) -> bool:
        module = self._step.as_written(number).module
        inside = read.module in (None, "", module) or (module or "").startswith(f"{read.module}.")
        return inside or bool(_numbers(read.number) & _numbers((call.args, dict(call.kwargs))))


def numbers_read(step: Step) -> Iterator[NumberRead]:
    """Every number that a step read, by a call that gives no tensor or by a function."""
    for number, call in step.calls():
        if call.read is not None and not call.results:
            yield NumberRead(number, tuple(reads(call)), call.read, call.part, call.module, call.place, call)
    for function in step.functions:
        given = tuple(refs(function.args))[:1]
        if function.read is not None:
            yield NumberRead(function.first, given, function.read, function.part, function.module, function.place, None)


def _is_autograds(call: Call) -> bool:
    """Whether no code of the model made a call: a custom function's and a recomputation's calls are its own code."""
    return call.part == "backward" and call.node is None and not call.again


def _numbers(item: Json) -> set[float]:
    """The numbers in arguments that are not there for any reason."""
    if isinstance(item, Ref) or item is None or isinstance(item, bool | str | complex):
        return set()
    if isinstance(item, int | float):
        return set() if item in _COMMON else {item}
    inner = item.values() if hasattr(item, "values") else item
    return {number for one in inner for number in _numbers(one)}
