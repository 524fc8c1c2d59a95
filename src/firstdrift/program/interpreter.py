"""Runs a program again, call by call, from what a trace holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..core.traces import Array, Trace
from .calls import ControlDiffersError, NotReplayableError, Ref, Step
from .control import NumberRead
from .costs import LIMITS, Cost, Limits, check_cost, cost_of, why_too_much
from .cuts import Cut
from .running.batching import batch_of
from .running.calling import FAILURES, operation
from .running.nodes import Nodes, Tensors, Values
from .running.op_kinds import decisions
from .running.parts import Taken, counts_of_parts, parts_of
from .running.read_numbers import SEEDS, are_same, is_whole, listed, plain_number, sentence, unit_of, where
from .running.shaking import Shake
from .torch_values import array_of, decoded, tensor_of

__all__ = ["ControlDiffersError", "Interpreter", "NotReplayableError", "operation"]


class Interpreter:
    """The values of one step, computed in order; each is let go after its last reader.

    `tensors` gives the numbers of a site, where they are not the trace's own. With `exact`, everything that is float
    is float64, and complex complex128: tensors, results, and the dtypes that calls ask for, casts to shorter ones
    among them. Constants keep their values, the least number of a dtype included; drawn numbers are those drawn.
    Of the casts, those in `kept` round what they give.
    What takes more bytes than `limits` is run a few samples at a time where the program allows it, else refused.
    `shaken` makes it an exact run in which every number moves within its rounding (running/rounding.py).
    """

    def __init__(
        self, step: Step, trace: Trace, *, tensors: Tensors | None = None, exact: bool = False,
        shaken: Shake | None = None, limits: Limits = LIMITS, taken: Mapping[Ref, Taken] | None = None,
        kept: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        if shaken is not None and not exact:
            raise ValueError("a shaken run is one in float64; pass exact=True with `shaken`")
        self._step = step
        self._trace = trace
        self._tensors = tensors
        self._read: set[tuple[int, tuple[Ref, ...]]] = set()  # numbers that are the same from these tensors
        self._exact = exact
        self._limits = limits
        self._taken = taken or {}
        self._shaken = shaken
        self._kept = kept
        self._nodes = Nodes(step, trace, tensors, exact=exact, shaken=shaken, taken=self._taken, kept=kept)

    def run(self) -> Iterator[tuple[int, Values | NotReplayableError]]:
        """Every node with what it gives, or why it cannot be had."""
        numbers = range(len(self._step.nodes))
        left = Counter(ref.node for number in numbers for ref in self._step.needs(number))
        values: dict[int, Any] = {}
        failed: dict[int, str] = {}
        for number in numbers:
            needed = [ref.node for ref in self._step.needs(number)]
            try:
                missing = next((failed[one] for one in needed if one in failed), None)
                if missing is not None:
                    raise NotReplayableError(missing)
                values[number] = self._nodes.run(number, lambda ref: values[ref.node][ref.at])
            except NotReplayableError as error:
                failed[number] = str(error)
                yield number, error
            else:
                yield number, values[number]
            left.subtract(needed)
            for one in {*needed, number}:
                if left[one] <= 0:
                    values.pop(one, None)

    def value_of(self, cut: Cut) -> torch.Tensor:
        """What a cut gives; raises NotReplayableError where one of its calls cannot be made.

        On other tensors than the trace's own, ControlDiffersError where the run would have read other numbers before.
        """
        if self._tensors is not None:
            for read, made_by in cut.control:
                self._check_read(read, made_by)
        if cut.is_empty:  # a leaf, which is given
            return self._nodes.run(cut.target.node, dict[Ref, torch.Tensor]().__getitem__)[0]
        cost = cost_of(self._step, cut, exact=self._exact)
        if cost.bytes > self._limits.bytes:
            return self._in_parts(cut, cost)
        check_cost(cost, self._limits)
        return self._values_of(cut, [cut.target], self._decided(cut))[cut.target]

    def _in_parts(self, cut: Cut, cost: Cost) -> torch.Tensor:
        """The same, a few samples at a time, so that fewer bytes are held at once."""
        check_cost(replace(cost, bytes=0), self._limits)
        try:
            batch = batch_of(self._step, cut)
        except NotReplayableError as error:
            raise NotReplayableError(f"{why_too_much(cost, self._limits)}; in parts neither: {error}") from None
        for pieces in counts_of_parts(batch.samples):
            parts = parts_of(self._step, cut, batch, pieces)
            if max(cost_of(part.step, cut, exact=self._exact).bytes for part in parts) <= self._limits.bytes:
                runs = [self._like(part.step, part.taken, self._shaken) for part in parts]
                found = [run._values_of(cut, [cut.target], run._decided(cut))[cut.target] for run in runs]
                return torch.cat(found, batch.dim(cut.target))
        raise NotReplayableError(f"{why_too_much(cost, self._limits)}, even one sample at a time")

    def _like(self, step: Step, taken: Mapping[Ref, Taken], shaken: Shake | None) -> Interpreter:
        """One that runs part of the samples, or the same without noise, as this one runs all of them."""
        return Interpreter(
            step, self._trace, tensors=self._tensors, exact=self._exact, shaken=shaken,
            limits=self._limits, taken=taken, kept=self._kept,
        )  # fmt: skip

    def _decided(self, cut: Cut) -> Mapping[Ref, torch.Tensor]:
        """What an unshaken run decides on the way: a shaken one decides the same."""
        is_steady = self._shaken is not None and not self._shaken.free
        wanted = decisions(self._step, cut.nodes) if is_steady else []
        if not wanted:
            return {}
        unshaken = self._like(self._step, self._taken, None)
        before = Cut(wanted[-1], cut.given, tuple(node for node in cut.nodes if node <= wanted[-1].node))
        return self._nodes.decided(lambda: unshaken._values_of(before, wanted, {}))

    def _check_read(self, read: NumberRead, cut: Cut | None) -> None:
        """Whether a number would be read again from these tensors, in the precision in which it was read."""
        if cut is None:
            raise NotReplayableError(f"what was read at {where(read.place)} is of a tensor that no program holds")
        if (read.before, read.of) in self._read:
            return
        check_cost(cost_of(self._step, cut, exact=True), self._limits)
        recorded = read.number
        found = Interpreter(self._step, self._trace, tensors=self._tensors)._number(read, cut)
        if not is_whole(recorded):
            recorded = Interpreter(self._step, self._trace)._number(read, cut)
        type_ = self._step.type_of(read.of[0])
        if not are_same(recorded, found, lambda: self._spread(cut), 0.0 if type_ is None else unit_of(type_.dtype)):
            raise ControlDiffersError(sentence(read, recorded, found))
        self._read.add((read.before, read.of))

    def _number(self, read: NumberRead, cut: Cut) -> Any:
        values = self._values_of(cut, read.of, {})
        if read.call is None:
            return listed(values[read.of[0]])
        func, _ = operation(read.call.op)
        try:
            return plain_number(func(*decoded(read.call.args, values.__getitem__, exact=False)))
        except FAILURES as error:
            raise NotReplayableError(f"what was read at {where(read.place)} cannot be read again: {error}") from None

    def _spread(self, cut: Cut) -> float:
        """How far shaken runs lie from the unshaken one."""
        runs = [
            Interpreter(self._step, self._trace, tensors=self._tensors, exact=True, shaken=Shake(number))
            for number in SEEDS
        ]
        exact: Any = Interpreter(self._step, self._trace, tensors=self._tensors, exact=True).array_of(cut)
        return max(float(np.abs(run.array_of(cut) - exact).max(initial=0)) for run in runs)

    def _values_of(
        self, cut: Cut, wanted: Sequence[Ref], decided: Mapping[Ref, torch.Tensor], by: Sequence[Ref] = ()
    ) -> dict[Ref, torch.Tensor]:
        """Values of a cut, those decided before taken as they are; gradients are followed from those in `by`."""
        left = Counter(ref for number in cut.nodes for ref in self._step.needs(number))
        left.update(wanted)
        values: dict[Ref, torch.Tensor] = {}
        for ref, site in cut.given.items():
            tensor = self._nodes.given(ref, site)
            values[ref] = tensor.requires_grad_() if ref in by else tensor
        for number in cut.nodes:
            needed = self._step.needs(number)
            for at, tensor in enumerate(self._nodes.run(number, values.__getitem__)):
                ref = Ref(number, at)
                own = tensor.detach().requires_grad_() if ref in by else tensor
                values.setdefault(ref, decided.get(ref, own))
            for ref in needed:
                left[ref] -= 1
                if left[ref] <= 0:
                    values.pop(ref, None)
        return {ref: values[ref] for ref in wanted}

    def derivative(self, cut: Cut, by: Sequence[Ref], gradient: Array) -> list[Array]:
        """The gradients by values that a cut starts from, given that of its target: autograd through its calls.

        So a changed forward has the backward of the change, where the recorded one is that of what was recorded. A
        program does not say what ran without gradients or by a custom derivative: ask the unchanged forward first.
        """
        self._nodes.differentiates = True
        try:
            with torch.enable_grad():
                values = self._values_of(cut, [cut.target, *by], {}, by)
                given = tensor_of(gradient).to(values[cut.target].dtype)
                own = [values[ref] for ref in by]
                found = torch.autograd.grad(values[cut.target], own, given, materialize_grads=True)
        except FAILURES as error:
            raise NotReplayableError(f"the calls cannot be differentiated: {error}") from None
        finally:
            self._nodes.differentiates = False
        return [array_of(tensor) for tensor in found]

    def array_of(self, cut: Cut) -> Array:
        """The same as numpy has it: floats as float64, which holds every number of the others."""
        return array_of(self.value_of(cut))
