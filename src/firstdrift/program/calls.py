"""A program as data: leaves that are given, calls that compute, and the sites their results are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ..core.records import At
from ..core.sites import Site
from ..core.strict_json import Json
from ..errors import FirstdriftError

if TYPE_CHECKING:
    from .cuts import Cut

PARTS = ("forward", "loss", "backward", "optimizer", "after")
# Kernels of one kind of device. One that nothing opens is run as the function that the model called, if that is one of
# FUNCTIONS, which say the same on any device.
_DEVICE_KERNELS = (
    "_cudnn_", "_efficient_attention", "_flash_attention", "_lstm_mps", "_mps_", "_scaled_dot_product_", "_thnn_",
    "_triton_", "cudnn_", "miopen_", "mps_",
)  # fmt: skip
FUNCTIONS = frozenset({
    "torch.nn.functional.scaled_dot_product_attention", "torch.nn.functional.grid_sample", "torch.grid_sampler",
    "torch.nn.functional.ctc_loss", "torch.nn.functional.layer_norm", "torch.nn.functional.rms_norm",
    "torch.nn.functional.batch_norm", "torch.nn.functional.group_norm", "torch.lstm_cell", "torch.gru_cell",
    "torch.conv1d", "torch.conv2d", "torch.conv3d", "torch.conv_transpose1d", "torch.conv_transpose2d",
    "torch.conv_transpose3d", "torch.lstm", "torch.gru", "torch.rnn_tanh", "torch.rnn_relu",
})  # fmt: skip


class NotReplayableError(FirstdriftError, RuntimeError):
    """A call cannot be made again; the message says why."""


class ControlDiffersError(NotReplayableError):
    """From these tensors the run would have read other numbers, or made other shapes: other calls would follow."""


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
    def _needs(self) -> dict[int, tuple[Ref, ...]]:
        return {}

    def needs(self, number: int) -> tuple[Ref, ...]:
        """What a node is computed from: what it reads, random numbers that it drew, and what its function was given."""
        if number not in self._needs:  # every replay asks it again
            node = self.nodes[number]
            drawn = [Ref(leaf) for leaf in (node.drawn or {}).values()] if isinstance(node, Call) else []
            function = self.function_behind(number)
            given = [] if function is None else refs((function.args, function.kwargs))
            self._needs[number] = (*reads(node), *drawn, *(ref for ref in given if ref.node < number))
        return self._needs[number]

    def function_behind(self, number: int) -> Function | None:
        """The function to run in the place of a call: the call is a device's own, and gave what the function gave."""
        call, function = self.nodes[number], self.function_of.get(number)
        if not isinstance(call, Call) or not call.op.split(".")[1].startswith(_DEVICE_KERNELS):
            return None
        made = function is not None and any(ref.node == number for ref in function.results)
        return function if function is not None and made and function.op in FUNCTIONS else None

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

    def type_of(self, ref: Ref) -> Type | None:
        """The type of a value."""
        node = self.nodes[ref.node]
        return node.type if isinstance(node, Leaf) else node.results[ref.at]

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
