"""A cut that is run once and kept, and then again with something changed: only what depends on the change is computed.

It is run in float64, or in the precision that it ran in. What it spends is counted, in
calls; a large one counts for several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ..core.sites import Site
from ..core.traces import Array, Trace
from .calls import Call, Function, Leaf, NotReplayableError, Place, Ref, Step, reads
from .costs import Limits, check_cost, cost_of
from .cuts import Cut
from .edits import Edit, Fragment
from .openings import opened_by
from .running.batching import batch_of
from .running.calling import FAILURES, operation
from .running.changed_calls import called, like, refuse_long, refuse_unfit
from .running.nodes import Nodes, Tensors, as_cast
from .running.parts import Taken, parts_of
from .torch_values import array_of, lifted

UNFELT = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"})  # settings of storage
AT_ONCE = 1 << 14  # numbers that take about as long to compute as a call takes to be made
KEPT = Limits(calls=2_000, elements=1 << 26, bytes=384 << 20)  # of one cut, all of whose values are kept


@dataclass(frozen=True, slots=True)
class Setting:
    """A number, a name or a list that a call is given, with the schema's name, kind and default."""

    name: str
    place: int  # among positional arguments; -1 for those by name only
    kind: str
    value: Any
    default: Any


class Rerun:
    """The values of one cut and of what it starts from. `spent` is the work of all runs so far."""

    def __init__(
        self, step: Step, cut: Cut, trace: Trace, tensors: Tensors | None, *,
        kept: frozenset[int] = frozenset(), taken: Mapping[Ref, Taken] | None = None, exact: bool = True,
    ) -> None:  # fmt: skip
        check_cost(cost_of(step, cut, exact=exact), KEPT)
        self.exact = exact
        self.axis = 0  # of the target, along which its samples lie
        self.step, self.target, self.given = step, cut.target, cut.given
        self.order = cut.nodes
        self.spent = 0.0
        self._again = (trace, tensors, kept, taken)
        self._nodes = self._running(step)
        self._written: dict[int, Call | Function] = {}
        self._renamed: dict[Ref, Ref] = {}  # results of operations that were opened
        self._values = {ref: self._nodes.given(ref, site) for ref, site in cut.given.items()}
        for number in self.order:
            for at, tensor in enumerate(self._nodes.run(number, self._values.__getitem__)):
                self._values.setdefault(Ref(number, at), tensor)
        self._link()

    def _running(self, step: Step, *, alone: bool = False) -> Nodes:
        """What runs nodes of a step; each `alone` in float64, whatever the run is in."""
        trace, tensors, kept, taken = self._again
        kept = kept if self.exact and not alone else frozenset()
        return Nodes(step, trace, tensors, exact=self.exact or alone, shaken=None, taken=taken or {}, kept=kept)

    def _link(self) -> None:
        nodes = [(number, self.step.nodes[number]) for number in self.order]
        self.calls = {number: node for number, node in nodes if isinstance(node, Call)}
        self.leaves = {Ref(number): node for number, node in nodes if isinstance(node, Leaf)}
        self.readers: dict[Ref, list[int]] = defaultdict(list)
        for number in self.order:
            for ref in dict.fromkeys(reads(self.step.nodes[number])):
                self.readers[ref].append(number)
        self._nodes.is_changed = True
        self.ahead = self._ahead()
        self._at = {number: at for at, number in enumerate(self.order)}
        self._arrays: dict[Ref, Array] = {}

    def _ahead(self) -> dict[Ref, list[int]]:
        """Who reads a value behind the cut."""
        inside, found = set(self.order), defaultdict(list)
        for number, node in enumerate(self.step.nodes):
            if number not in inside and isinstance(node, Call):
                for ref in dict.fromkeys(reads(node)):
                    found[self._renamed.get(ref, ref)].append(number)
        return found

    @property
    def refs(self) -> list[Ref]:
        """Every value that is known."""
        return list(self._values)

    def array(self, ref: Ref) -> Array:
        """A value; floats as float64."""
        if ref not in self._arrays:
            self._arrays[ref] = array_of(self._values[ref])
        return self._arrays[ref]

    def shape(self, ref: Ref) -> tuple[int, ...]:
        """The shape of a value."""
        return tuple(self._values[ref].shape)

    def shape_of(self, ref: Ref) -> tuple[int, ...]:
        """The shape of any value of the step, as it was recorded."""
        known = self.step.type_of(ref)
        return () if known is None else tuple(known.shape)

    def recorded(self, site: Site) -> Array | None:
        """What a run begins with at a site: the tensor that it is given, else the recorded one."""
        trace, tensors, _, _ = self._again
        given = None if tensors is None else tensors(site)
        return given if given is not None or site not in trace else trace.array(site)

    def kind(self, ref: Ref) -> str:
        """What numbers a value has: b, i, f or c."""
        dtype = self._values[ref].dtype
        return "b" if dtype == torch.bool else "c" if dtype.is_complex else "f" if dtype.is_floating_point else "i"

    def alone(self, number: int) -> Array | None:
        """What one call makes in float64 of what it was given in this run; None where it cannot be made so."""
        try:
            made = self._running(self.step, alone=True).run(number, lambda ref: lifted(self._values[ref]))
        except (*FAILURES, NotReplayableError):
            return None
        return array_of(made[0]) if made else None

    def written(self, number: int) -> Call | Function:
        """A call as the model's code has it."""
        return self._written.get(number) or self.step.as_written(number)

    @property
    def is_opened(self) -> bool:
        """Whether larger operations were opened."""
        return bool(self._written)

    def is_part(self, number: int) -> bool:
        """Whether a call is one of those that a larger one was opened to."""
        return number in self._written

    def place(self, number: int) -> Place | None:
        """The line of the model's code that makes a call."""
        return self.written(number).place

    def settings(self, number: int) -> list[Setting]:
        """What a call is given besides tensors, with defaults for what it is not."""
        call = self.calls[number]
        found = []
        schema = operation(call.op)[0]._schema  # type: ignore[attr-defined]
        for at, one in enumerate(schema.arguments):
            kind = str(one.type)
            if "Tensor" in kind or one.name in UNFELT:
                continue
            default = one.default_value if one.has_default_value() else None
            value = call.args[at] if at < len(call.args) else call.kwargs.get(one.name, default)
            found.append(Setting(one.name, -1 if one.kwarg_only else at, kind, value, default))
        return found

    def run(self, edit: Edit, target: Ref | None = None) -> Array | None:
        """What is made of it with some calls changed; None where it cannot be made, or where nothing changes."""
        target = target or self.target
        again: dict[Ref, torch.Tensor] = {}
        try:
            for number in self._behind(edit, target):
                results = self._results(number, edit, again)
                self.spent += 1 + sum(result.numel() for result in results) / AT_ONCE
                for at, one in enumerate(results):
                    if not _equal(one, self._values[Ref(number, at)]):
                        again[Ref(number, at)] = one
        except (*FAILURES, NotReplayableError):
            return None
        return array_of(again[target]) if target in again else None

    def _behind(self, edit: Edit, target: Ref) -> Sequence[int]:
        start = min(self._at[number] for number in edit)
        end = self._at.get(target.node, len(self.order) - 1)
        return self.order[start : end + 1]

    def _results(self, number: int, edit: Edit, again: Mapping[Ref, torch.Tensor]) -> Sequence[torch.Tensor]:
        def value(ref: Ref) -> torch.Tensor:
            return again[ref] if ref in again else self._values[ref]

        fragment = edit.get(number)
        if fragment is not None:
            return self._changed(number, fragment, value)
        node = self.step.nodes[number]
        if any(ref in again for ref in reads(node)):
            if isinstance(node, Call):
                refuse_unfit(node, value, node, self._values.__getitem__)
            return self._nodes.run(number, value)
        return ()

    def _changed(self, number: int, fragment: Fragment, value: Any) -> Sequence[torch.Tensor]:
        made: dict[Ref, torch.Tensor] = {}

        def own(ref: Ref) -> torch.Tensor:
            found: torch.Tensor = made[ref] if ref in made else value(ref)
            return found

        last: list[torch.Tensor] = []
        for at, call in enumerate(fragment.calls):
            refuse_unfit(call, own, self.calls.get(number), self._values.__getitem__)
            refuse_long(call)
            last = self._as_meant(number, call, called(call, own, self.exact))
            made |= {Ref(-1 - at, place): one for place, one in enumerate(last)}
        results = [own(ref) for ref in fragment.results] or last
        count = len(self.calls[number].results) if number in self.calls else 1
        if len(results) < count:  # what a kernel keeps beside its first result
            results += [self._values[Ref(number, at)] for at in range(len(results), count)]
        wanted = [self._values[Ref(number, at)] for at in range(count)]
        return [like(one, other, at) for at, (one, other) in enumerate(zip(results, wanted, strict=False))]

    def _as_meant(self, number: int, call: Call, made: list[torch.Tensor]) -> list[torch.Tensor]:
        """What a call gives, rounded where its own cast is meant."""
        node, kept = self.step.nodes[number], self._again[2]
        if not isinstance(node, Call) or number not in kept or call.op != node.op or not self.exact:
            return made
        return [as_cast(one, type_) for one, type_ in zip(made, node.results, strict=False)]

    def opened(self) -> Rerun | None:
        """The same with larger operations as the smaller ones they consist of; None where there are none."""
        nodes: list[Any] = list(self.step.nodes)
        order: list[int] = []
        values, renamed, written = dict(self._values), dict[Ref, Ref](), dict(self._written)
        for number in self.order:
            node = nodes[number]
            found = None
            if isinstance(node, Call):
                node = nodes[number] = replace(
                    node, args=_renamed(node.args, renamed), kwargs=_renamed(node.kwargs, renamed)
                )
                found = opened_by(node, values.__getitem__, len(nodes), exact=self.exact)
            if found is None:
                order.append(number)
                continue
            for call, results in found.calls:
                written[len(nodes)] = self.written(number)
                values |= {Ref(len(nodes), at): one for at, one in enumerate(results)}
                order.append(len(nodes))
                nodes.append(replace(call, part=node.part, module=node.module, place=node.place))
            renamed |= {Ref(number, at): ref for at, ref in enumerate(found.results) if ref is not None}
        if not renamed:
            return None
        other = copy(self)
        other.step, other.order = replace(self.step, nodes=tuple(nodes)), tuple(order)
        other.target = renamed.get(self.target, self.target)
        other._written, other._values, other._renamed = written, values, self._renamed | renamed
        other._nodes = other._running(other.step)
        other._link()
        return other


class Piece(NamedTuple):
    """One of so many even parts of the samples."""

    at: int
    of: int

    def taken(self, array: Array, axis: int) -> Array:
        """The same part of a tensor that has its samples along an axis."""
        count = array.shape[axis]
        found: Array = np.take(array, range(count * self.at // self.of, count * (self.at + 1) // self.of), axis)
        return found


def rerun_of(
    step: Step, cut: Cut, trace: Trace, tensors: Tensors | None, *, kept: frozenset[int], exact: bool,
    piece: Piece | None,
) -> Rerun:  # fmt: skip
    """The run of a cut, or of some of its samples; raises NotReplayableError where it treats them together."""
    if piece is None:
        return Rerun(step, cut, trace, tensors, kept=kept, exact=exact)
    batch = batch_of(step, cut)
    part = parts_of(step, cut, batch, piece.of)[piece.at]
    found = Rerun(part.step, cut, trace, tensors, kept=kept, taken=part.taken, exact=exact)
    found.axis = batch.dim(cut.target)
    return found


def samples_of(step: Step, cut: Cut) -> int:
    """How many samples a cut has that are computed one by one; 1 where it mixes them."""
    try:
        return batch_of(step, cut).samples
    except NotReplayableError:
        return 1


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or (one.shape == other.shape and bool(torch.equal(one, other)))


def _renamed(item: Any, names: Mapping[Ref, Ref]) -> Any:
    if isinstance(item, Ref):
        return names.get(item, item)
    if isinstance(item, Mapping):
        return {key: _renamed(one, names) for key, one in item.items()}
    return tuple(_renamed(one, names) for one in item) if isinstance(item, tuple | list) else item
