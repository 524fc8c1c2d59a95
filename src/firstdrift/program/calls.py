"""A program as data: leaves that are given, calls that compute, and the sites their results are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ..core.records import At
from ..core.sites import Site
from ..core.strict_json import Json

if TYPE_CHECKING:
    from .cuts import Cut

PARTS = ("forward", "loss", "backward", "optimizer", "after")


class Ref(NamedTuple):
    """A tensor: a result of an earlier node of the same step, or the one tensor that a leaf is."""

    node: int
    at: int = 0


class Type(NamedTuple):
    """What is known of a tensor before it is computed; `strides` is None where it lies in C order."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    device: str = "cpu"


class Place(NamedTuple):
    """A line of the model's own code; `text` is there if the run was asked to keep it."""

    file: str
    line: int
    function: str
    text: str | None = None


class Earlier(NamedTuple):
    """A site that an earlier step recorded: what it left is what this step began with."""

    site: Site
    steps_ago: int


class Bytes(NamedTuple):
    """A tensor stored in the data files for the program alone; `bits` is one bit an element."""

    at: At
    bits: bool = False


class Inline(NamedTuple):
    """A small constant: its elements, in C order."""

    elements: tuple[Json, ...]


class Missing(NamedTuple):
    """A tensor that the run used and the trace does not hold, and why."""

    why: str


Source = Site | Earlier | Bytes | Inline | Missing


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor that no call of the step made. `name` is what the model calls it, where that is known."""

    type: Type
    source: Source
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operation.

    Tensors in `args` and `kwargs` are `Ref`s; what is no plain JSON stands there as an object with one key, such as
    `{"dtype": "f32"}`. Its results are the tensors it returns, then those it wrote to and did not return; programs are
    functional, so a call never changes the value that another one reads.
    """

    op: str
    args: tuple[Json, ...]
    kwargs: Mapping[str, Json]
    results: tuple[Type | None, ...]
    part: str = "forward"
    module: str | None = None
    place: Place | None = None
    of: int | None = None  # the forward call it helps to differentiate
    node: str | None = None  # the class of a custom autograd function whose backward makes it
    drawn: Mapping[int, int] | None = None  # results that are random numbers, and the leaves that hold them
    read: Json = None  # a number that was read out of a tensor
    again: bool = False  # a recomputation, as activation checkpointing makes it
    implied: bool = False  # not called by anybody: what memory holds after a write through a view
    function: str | None = None  # the same call as the user wrote it


@dataclass(frozen=True, slots=True)
class Function:
    """A call as the user wrote it; `first` to `last` are the calls nested in it, none where it only reads."""

    op: str
    args: tuple[Json, ...]
    kwargs: Mapping[str, Json]
    results: tuple[Ref, ...]
    part: str
    module: str | None
    place: Place | None
    first: int
    last: int
    read: Json = None


Node = Leaf | Call


@dataclass(frozen=True)
class Step:
    """The program of one step."""

    number: int
    nodes: tuple[Node, ...]
    functions: tuple[Function, ...]
    sites: Mapping[Site, Ref]
    optimizers: tuple[Mapping[str, Json], ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def needed(self) -> dict[int, tuple[Ref, ...]]:
        """What nodes are computed from, of those that were asked for: every replay asks it again."""
        return {}

    @cached_property
    def function_of(self) -> dict[int, Function]:
        """The function that a call is nested in."""
        return {number: function for function in self.functions for number in range(function.first, function.last + 1)}

    def as_written(self, number: int) -> Call | Function:
        """A call as the model's code has it, with module and line: itself, or the function that it is nested in."""
        call = self.nodes[number]
        if number in self.function_of or not isinstance(call, Call):
            return self.function_of[number]
        return call

    def calls(self) -> Iterator[tuple[int, Call]]:
        """Every call with its number."""
        return ((number, node) for number, node in enumerate(self.nodes) if isinstance(node, Call))

    def behind(self, ref: Ref, *, stop: frozenset[int] = frozenset()) -> list[int]:
        """The nodes that a tensor depends on, in order; nothing behind the nodes in `stop` is followed."""
        needed: set[int] = set()
        waiting = [ref.node]
        while waiting:
            number = waiting.pop()
            if number not in needed:
                needed.add(number)
                if number not in stop:
                    waiting.extend(read.node for read in reads(self.nodes[number]))
        return sorted(needed)


@dataclass(frozen=True)
class Program:
    """What `program.jsonl` says; `problems` is what it promised and does not hold, one sentence each."""

    header: Mapping[str, Json]
    steps: Mapping[int, Step]
    problems: tuple[str, ...] = ()

    def find(self, site: Site) -> tuple[Step, Ref] | None:
        """The step and the value of a site."""
        step = self.steps.get(site.step)
        ref = None if step is None else step.sites.get(site)
        return None if step is None or ref is None else (step, ref)

    def why_not_cut(self, step: Step, cut: Cut) -> str | None:
        """Why a part of a step is not to be believed; what was recorded is."""
        return None

    def is_inferred(self, step: Step, cut: Cut) -> bool:
        """Whether an operation in a part of a step was found by trying; none of what was recorded was."""
        return False


def reads(node: Node) -> list[Ref]:
    """The tensors that a call reads."""
    return [] if isinstance(node, Leaf) else list(refs((node.args, node.kwargs)))


def refs(item: Json) -> Iterator[Ref]:
    """The references in arguments, however deep they lie."""
    if isinstance(item, Ref):
        yield item
    elif isinstance(item, Mapping):
        for one in item.values():
            yield from refs(one)
    elif isinstance(item, tuple | list):
        for one in item:
            yield from refs(one)


def lost(item: Json) -> Iterator[str]:
    """What arguments held that no program can: its type, for each."""
    if isinstance(item, Mapping):
        if item.keys() == {"lost"}:
            yield str(item["lost"])
        else:
            for one in item.values():
                yield from lost(one)
    elif isinstance(item, tuple | list) and not isinstance(item, Ref):
        for one in item:
            yield from lost(one)
