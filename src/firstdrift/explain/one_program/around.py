"""One call of a program with what feeds it and what it feeds: what a change of it is named after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from ...program.calls import Call, Place, Ref, reads
from ...program.edits import Edit, Fragment, local, made_by

if TYPE_CHECKING:
    from ...core.traces import Array
    from ...program.reruns import Rerun, Setting

SOFTMAX = frozenset({"_softmax", "_log_softmax", "_scaled_dot_product_flash_attention_for_cpu", "_safe_softmax"})
ATTENTION = frozenset({"_softmax", "_scaled_dot_product_flash_attention_for_cpu", "_safe_softmax"})
MIXING = SOFTMAX | {"mm", "bmm", "addmm", "baddbmm", "convolution", "embedding"}
MOVES = frozenset({
    "view", "_unsafe_view", "reshape", "_reshape_alias", "transpose", "permute", "t", "expand", "clone", "detach",
    "alias", "unsqueeze", "squeeze", "_to_copy", "contiguous", "select", "slice", "split", "unbind", "cat", "stack",
    "lift_fresh", "copy", "split_with_sizes",
})  # fmt: skip
TRUSTING = frozenset({"mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_scaled_dot_product_flash_attention"})
ANGLES = frozenset({"cos", "sin", "polar"})
LOW = -1e4  # what is added to scores to mask them is no greater
ONE = 2e-2  # what squares of cosines and sines may be off one, in a short format
MOST_BEFORE = 400  # nodes that are gone back to see what a value was computed from
JOINS = frozenset({"cat", "stack", "copy", "slice_scatter", "copy_", "flatten"})


@dataclass(frozen=True, slots=True)
class Change:
    """One way in which a program may have been another one.

    Calls of one operation that are changed in one `kind` of way are also tried together. `bits` is how much has to be
    said to tell the change from all others of its length; `free` how many numbers were fitted.
    """

    kind: str
    label: str
    said: str
    edit: Edit
    bits: float = 4.0
    free: int = 0
    parameters: Mapping[str, Any] = ()  # type: ignore[assignment]
    at: int | None = None  # the call whose line is told, where it is none that is changed
    candidate: int | None = None  # the candidate's call in its place
    undone: str = ""  # how it is told where it is the candidate's program that it puts right
    undone_label: str = ""  # and what it is called then, if not the same
    later: Callable[[], Mapping[str, str]] | None = None  # names that are looked up once it fits

    @property
    def named(self) -> Change:
        """The same with its names."""
        return self if self.later is None else replace(self, **self.later(), later=None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Around:
    """A call of a program that can be run again."""

    rerun: Rerun
    number: int

    @cached_property
    def call(self) -> Call:
        """The call itself."""
        found = self.rerun.step.nodes[self.number]
        assert isinstance(found, Call)
        return found

    @cached_property
    def op(self) -> str:
        """Its operation, without namespace and overload."""
        return base(self.call)

    @cached_property
    def written(self) -> str:
        """What the model's code calls it."""
        found = self.rerun.written(self.number)
        name = (found.function if isinstance(found, Call) else found.op) or self.op
        name = (self.op if name.startswith("aten.") else name.split(".")[-1]).strip("_")
        return f"{self.op.strip('_')} of {name}" if self.rerun.is_part(self.number) else name

    @property
    def within(self) -> str:
        """The same; of one of several calls that a larger function makes, both are told."""
        found = self.rerun.written(self.number)
        if isinstance(found, Call) or self.rerun.is_part(self.number):
            return self.written
        calls = self.rerun.calls
        others = [one for one in range(found.first, found.last + 1) if one in calls and base(calls[one]) not in MOVES]
        return f"{self.op.strip('_')} of {self.written}" if len(others) > 1 else self.written

    @property
    def result(self) -> Ref:
        """Its first result."""
        return Ref(self.number)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of its first result."""
        return self.rerun.shape(self.result)

    @cached_property
    def kind(self) -> str:
        """What numbers its first result has."""
        return self.rerun.kind(self.result)

    @cached_property
    def tensors(self) -> list[Ref]:
        """The tensors among its arguments, in order."""
        return reads(self.call)

    def array(self, ref: Ref) -> Array:
        """A value of the program."""
        return self.rerun.array(ref)

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """What it is given besides tensors; nothing of a kernel that reads beyond its tensors if it is told to."""
        if self.op in TRUSTING:
            return {}
        return {setting.name: setting for setting in self.rerun.settings(self.number)}

    def next(self) -> Iterator[Around]:
        """The calls that read what it made."""
        refs = [Ref(self.number, at) for at in range(len(self.call.results))]
        seen = dict.fromkeys(n for ref in refs for n in (*self.rerun.readers[ref], *self.rerun.ahead.get(ref, ())))
        return (Around(self.rerun, number) for number in seen)

    @property
    def is_behind(self) -> bool:
        """Whether it is not part of what makes the tensor, but reads it."""
        return self.number not in self.rerun.calls

    def makers(self) -> Iterator[Around]:
        """The calls that made what it reads."""
        calls = self.rerun.calls
        return (
            Around(self.rerun, ref.node) for ref in self.tensors if ref.node in calls and ref not in self.rerun.given
        )

    @cached_property
    def following(self) -> frozenset[str]:
        """The operations that read what it made, past those that only move numbers."""
        return _ops(_walked(self.next(), lambda one: one.next() if one.op in MOVES else ()))

    @cached_property
    def preceding(self) -> frozenset[str]:
        """The operations that made what it reads, past those that only move numbers."""
        return _ops(_walked(self.makers(), lambda one: one.makers() if one.op in MOVES else ()))

    @cached_property
    def after(self) -> frozenset[str]:
        """The operations that work on what it made, however far behind it."""
        return self.reached(frozenset())

    @cached_property
    def before(self) -> frozenset[str]:
        """The operations that its arguments came from, however far before it."""
        return _ops(_walked(self.makers(), Around.makers))

    def reached(self, stop: frozenset[str]) -> frozenset[str]:
        """The operations behind it, up to some that are not gone through."""
        behind = self.behind(stop)
        by_hand = any(around.op == "exp" and around.is_softmax for around in behind)
        return _ops(behind) | (frozenset({"_softmax"}) if by_hand else frozenset())

    @property
    def is_softmax(self) -> bool:
        """Whether exponentials are divided by their own sum."""
        return {"sum", "div"} <= self.following

    def behind(self, stop: frozenset[str]) -> list[Around]:
        """The calls behind it, up to some operations that are not gone through."""

        def further(one: Around) -> Iterable[Around]:
            return () if one.is_behind and one.op in MIXING else (some for some in one.next() if some.op not in stop)

        return _walked((one for one in self.next() if one.op not in stop), further)

    @property
    def in_attention(self) -> bool:
        """Whether a softmax works on what it made, or made what it works on."""
        return bool(ATTENTION & (self.after | self.before | {self.op}))

    @property
    def of_scores(self) -> bool:
        """Whether a softmax works on what it made."""
        return bool(SOFTMAX & (self.after | {self.op}))

    @cached_property
    def in_tables(self) -> bool:
        """Whether it makes angles, of which cosines and sines are taken before they are mixed with anything."""
        return self.op in ANGLES or bool(ANGLES & self.reached(MIXING))

    @property
    def is_rotation(self) -> bool:
        """Whether angles are about: the program makes cosines and sines, or is given such tables."""
        ops = {base(call) for call in self.rerun.calls.values()}
        return bool(ANGLES & ops) or bool(cosines(self.rerun))

    @cached_property
    def is_bias_of_scores(self) -> bool:
        """Whether what it made is added to scores that do not come from it: a bias by distance."""
        behind = self.behind(SOFTMAX)
        if not ATTENTION & self.after or MIXING & (self.before | {around.op for around in behind}):
            return False
        return any(around.op in ("add", "sub") and _adds_to_scores(around, self.number) for around in (self, *behind))

    def is_parameter(self, ref: Ref) -> bool:
        """Whether a value is one of the model's own, however it was turned."""
        site = self.source(ref)
        return site is not None and site.phase == "weight"

    def source(self, ref: Ref) -> Any:
        """The site that a value was recorded under, past calls that only move numbers; None for what was computed."""
        while ref not in self.rerun.given:
            node = self.rerun.step.nodes[ref.node]
            if not isinstance(node, Call):
                source = node.source
                return source if hasattr(source, "phase") else getattr(source, "site", None)
            if base(node) not in MOVES or not (read := reads(node)):
                return None
            ref = read[0]
        return self.rerun.given[ref]

    def source_ref(self, ref: Ref) -> Ref:
        """What a value is before calls that only move numbers."""
        while ref.node in self.rerun.calls and ref not in self.rerun.given:
            call = self.rerun.calls[ref.node]
            if base(call) not in MOVES or not (read := reads(call)):
                break
            ref = read[0]
        return ref

    def parted(self, ref: Ref) -> Around | None:
        """The call that a value is one of several results of, past calls that only move numbers."""
        while ref.node in self.rerun.calls and ref not in self.rerun.given:
            one = Around(self.rerun, ref.node)
            if len(one.call.results) > 1 and one.op in MOVES:
                return one
            if one.op not in MOVES or not one.tensors:
                return None
            ref = one.tensors[0]
        return None

    def is_small(self, ref: Ref) -> bool:
        """Whether a value has one axis at most: a bias, a gain."""
        return sum(size > 1 for size in self.rerun.shape(ref)) <= 1

    def depends(self, ref: Ref, on: Ref) -> bool:
        """Whether one value was computed from another, also before what was recorded."""
        left, seen = [ref], set[int]()
        while left and len(seen) < MOST_BEFORE:
            one = left.pop()
            if one == on:
                return True
            if one.node in seen or not 0 <= one.node < len(self.rerun.step.nodes):
                continue
            seen.add(one.node)
            left += reads(self.rerun.step.nodes[one.node])
        return False

    # What changes are written with.

    def instead(self, *calls: Call, results: tuple[Ref, ...] = ()) -> Edit:
        """Other calls in its place."""
        return {self.number: Fragment(calls, results)}

    def passing(self, ref: Ref) -> Edit:
        """A value in the place of what it makes."""
        return self.instead(results=(ref,))

    def then(self, op: str, *args: Any, **kwargs: Any) -> Edit:
        """Another call behind it, of what it makes."""
        return self.instead(self.call, made_by(op, local(0), *args, **kwargs))

    def given(self, place: int, ref: Any) -> Edit:
        """The call with another tensor, or list of them, at one place."""
        args = tuple(ref if at == place else one for at, one in enumerate(self.call.args))
        return self.instead(Call(self.call.op, args, self.call.kwargs, ()))

    def reading(self, old: Ref, new: Ref, *first: Call) -> Edit:
        """The call with another tensor wherever it read one; `first` are calls that make it."""
        args, kwargs = replaced(self.call.args, old, new), replaced(dict(self.call.kwargs), old, new)
        return self.instead(*first, Call(self.call.op, args, kwargs, ()))

    def read_as(self, ref: Ref, *calls: Call) -> Edit:
        """The call reading what some calls make in the place of a value."""
        return self.reading(ref, local(len(calls) - 1), *calls)

    def set(self, name: str, value: Any) -> Edit:
        """The call with another setting."""
        one = self.settings[name]
        args, kwargs = list(self.call.args), dict(self.call.kwargs)
        if one.place < 0:
            kwargs[name] = value
        elif one.place < len(args):
            args[one.place] = value
        else:
            others = sorted((other for other in self.settings.values() if other.place >= 0), key=lambda it: it.place)
            between = [other.default for other in others if len(args) <= other.place < one.place]
            if len(args) + len(between) != one.place:
                kwargs[name] = value
            else:
                args += [*between, value]
        return self.instead(Call(self.call.op, tuple(args), kwargs, ()))


def read_everywhere(rerun: Rerun, ref: Ref, *calls: Call) -> dict[int, Fragment]:
    """Every call that reads a value, reading what some calls make in its place."""
    edit: dict[int, Fragment] = {}
    for number in rerun.readers[ref]:
        edit |= Around(rerun, number).read_as(ref, *calls)
    return edit


def _walked(first: Iterable[Around], further: Callable[[Around], Iterable[Around]]) -> list[Around]:
    """Calls, and those that follow from each, once each."""
    found = dict[int, Around]()
    left = list(first)
    while left:
        one = left.pop()
        if one.number not in found:
            found[one.number] = one
            left += further(one)
    return list(found.values())


def _ops(arounds: Iterable[Around]) -> frozenset[str]:
    return frozenset(one.op for one in arounds)


def cosines(rerun: Rerun) -> set[Ref]:
    """The tensors that a program is given and that are cosines and sines of the same angles."""
    tables = [ref for ref in rerun.given if rerun.kind(ref) == "f" and len(rerun.shape(ref)) > 1]
    squares = {ref: np.square(np.asarray(rerun.array(ref), np.float64)) for ref in tables}
    small = [ref for ref in tables if squares[ref].size and squares[ref].max() <= 1 + ONE]
    pairs = ((a, b) for a, b in combinations(small, 2) if rerun.shape(a) == rerun.shape(b))
    return {ref for a, b in pairs if np.abs(squares[a] + squares[b] - 1).max() <= ONE for ref in (a, b)}


def _adds_to_scores(around: Around, bias: int) -> bool:
    """Whether a sum has one term that a product made, and that does not come from a bias."""
    made = [Around(around.rerun, ref.node) for ref in around.tensors if ref.node in around.rerun.calls]
    return any(MIXING & (one.before | {one.op}) and one.number != bias for one in made)


def place_of(rerun: Rerun, number: int) -> Place | None:
    """The line of the model's code that makes a call; of one that differentiates, that of the forward call, and of a
    sum of gradients that of the call that its last term comes from."""
    call = rerun.calls.get(number)
    if call is None or call.part != "backward":
        return rerun.place(number)
    makers = (rerun.calls.get(ref.node) for ref in reversed(reads(call)))
    sources = [call.of, *(maker.of for maker in makers if maker is not None)]
    of = next((source for source in sources if source is not None), None)
    return None if of is None else rerun.place(of)


def base(call: Call) -> str:
    """An operation without namespace, overload, and the mark of writing in place."""
    name = call.op.split(".")[1]
    return name.rstrip("_") if not name.startswith("_") else name


def replaced(item: Any, old: Ref, new: Any) -> Any:
    """Arguments with another tensor in the place of one."""
    if isinstance(item, Ref):
        return new if item == old else item
    if isinstance(item, Mapping):
        return {key: replaced(one, old, new) for key, one in item.items()}
    return tuple(replaced(one, old, new) for one in item) if isinstance(item, tuple | list) else item


def number(value: Any) -> float | None:
    """A setting as a number, infinities as well; None where it is none."""
    if isinstance(value, Mapping) and set(value) == {"float"}:
        return float(str(value["float"]))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def is_mask(array: Array) -> bool:
    """Whether numbers are zero where something may be seen, and very low elsewhere."""
    if array.dtype.kind != "f":
        return False
    wide = np.asarray(array, np.float64)
    return bool(np.any(wide <= LOW)) and not np.any(wide > 1e3)


def hidden(array: Array) -> Array | None:
    """Where a mask hides; None of what is none."""
    if array.dtype.kind == "b":
        return array
    found: Array | None = np.asarray(array, np.float64) <= LOW if is_mask(array) else None
    return found


def are_positions(rerun: Rerun, ref: Ref) -> bool:
    """Whether whole numbers go up by one in every row, but for places that they stand still at."""
    shape = rerun.shape(ref)
    if rerun.kind(ref) != "i" or not shape or shape[-1] < 2:
        return False
    steps = np.diff(rerun.array(ref), axis=-1)
    return bool(((steps == 0) | (steps == 1)).all() and steps.any())
