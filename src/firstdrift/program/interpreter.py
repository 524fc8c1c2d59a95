"""Runs a program again, call by call, from what a trace holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..sites import Site
from ..traces import Array, Trace
from .calls import Call, Earlier, Leaf, Ref, Step, Type
from .control import NumberRead
from .costs import LIMITS, Cost, Limits, check_cost, cost_of, why_too_much
from .cuts import Cut, type_of
from .device_kernels import function_behind, needs
from .op_facts import Facts, flat
from .running.after_drawing import AFTER_DRAWING
from .running.allowed import operation
from .running.batching import Taken, batch_of, counts_of_parts, part_of, parts_of, whole_leaf
from .running.decoding import decoded
from .running.making import FAILURES, FUNCTIONS_BY_NAME, differentiable, made, made_otherwise, unknown
from .running.not_replayable import ControlDiffersError, NotReplayableError
from .running.numbers import SEEDS, are_same, is_whole, listed, plain_number, sentence, unit_of, where
from .running.shaking import Shaking, decisions
from .running.stored_tensors import array_of_leaf, array_of_site, laid_out, lies_so, tensor_of
from .running.torch_dtypes import LIFTED, TORCH_DTYPES, lifted

__all__ = ["ControlDiffersError", "Interpreter", "NotReplayableError", "operation"]

Values = Sequence[torch.Tensor]
Reading = Callable[[Ref], torch.Tensor]


class Interpreter:
    """The values of one step, computed in order; each is let go after its last reader unless it is kept.

    `tensors` gives the numbers of a site, where they are not the trace's own. With `exact`, everything that is float
    is float64, and complex complex128: tensors, results, and the dtypes that calls ask for, casts to shorter ones
    among them. Constants keep their values, the least number of a dtype included; drawn numbers are those drawn.
    What takes more bytes than `limits` is run a few samples at a time where the program allows it, else refused.
    `shaken` is a seed: an exact run in which every number moves within its rounding (running/shaking.py).
    """

    def __init__(
        self, step: Step, trace: Trace, *, tensors: Callable[[Site], Array | None] | None = None, exact: bool = False,
        shaken: int | None = None, limits: Limits = LIMITS, taken: Mapping[Ref, Taken] | None = None,
    ) -> None:  # fmt: skip
        if shaken is not None and not exact:
            raise ValueError("a shaken run is one in float64; pass exact=True with `shaken`")
        self._step = step
        self._trace = trace
        self._tensors = tensors or (lambda site: None)
        self._is_others = tensors is not None
        self._read: set[tuple[int, tuple[Ref, ...]]] = set()  # numbers that are the same from these tensors
        self._exact = exact
        self._limits = limits
        self._taken = taken or {}
        self._shaken = shaken
        self._shaking = None if shaken is None else Shaking(step, shaken)
        self._differentiates: frozenset[Ref] | None = None  # by which values, while that is done
        self._values: dict[int, Any] = {}  # results of nodes, by number

    def run(self, keep: frozenset[int] = frozenset()) -> Iterator[tuple[int, Values | NotReplayableError]]:
        """Every node with what it gives, or why it cannot be had; nodes in `keep` stay available to `value`."""
        needed_by = [[ref.node for ref in needs(self._step, number)] for number in range(len(self._step.nodes))]
        left = Counter(node for needed in needed_by for node in needed)
        failed: dict[int, str] = {}
        for number, needed in enumerate(needed_by):
            try:
                missing = next((one for one in needed if one in failed), None)
                if missing is not None:
                    raise NotReplayableError(failed[missing])
                self._values[number] = self._run(number)
            except NotReplayableError as error:
                failed[number] = str(error)
                yield number, error
            else:
                yield number, self._values[number]
            for one in {*needed, number}:
                left[one] -= needed.count(one)
                if left[one] <= 0 and one not in keep:
                    self._values.pop(one, None)

    def value_of(self, cut: Cut) -> torch.Tensor:
        """What a cut gives; raises NotReplayableError where one of its calls cannot be made.

        On other tensors than the trace's own, ControlDiffersError where the run would have read other numbers before.
        """
        if self._is_others:
            for read, made_by in cut.control:
                self._check_read(read, made_by)
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
            if max(cost_of(one.step, cut, exact=self._exact).bytes for one in parts) <= self._limits.bytes:
                runs = [self._like(one.step, one.taken, self._shaken) for one in parts]
                found = [run._values_of(cut, [cut.target], run._decided(cut))[cut.target] for run in runs]
                return torch.cat(found, batch.dim(cut.target))
        raise NotReplayableError(f"{why_too_much(cost, self._limits)}, even one sample at a time")

    def _like(self, step: Step, taken: Mapping[Ref, Taken], shaken: int | None) -> Interpreter:
        """One that runs part of the samples, or the same without noise, as this one runs all of them."""
        return Interpreter(
            step, self._trace, tensors=self._tensors if self._is_others else None, exact=self._exact, shaken=shaken,
            limits=self._limits, taken=taken,
        )  # fmt: skip

    def _decided(self, cut: Cut) -> dict[Ref, torch.Tensor]:
        """What an unshaken run decides on the way: a shaken one decides the same."""
        wanted = [] if self._shaking is None else decisions(self._step, cut.nodes)
        if not wanted:
            return {}
        unshaken = self._like(self._step, self._taken, None)
        before = Cut(wanted[-1], cut.given, tuple(one for one in cut.nodes if one <= wanted[-1].node))
        return unshaken._values_of(before, wanted, {})

    def _tracked(self, ref: Ref, tensor: torch.Tensor) -> torch.Tensor:
        """A value, as a leaf of autograd's graph where gradients by it are asked for."""
        return tensor.detach().requires_grad_() if self._differentiates and ref in self._differentiates else tensor

    def _check_read(self, read: NumberRead, cut: Cut | None) -> None:
        """Whether a number would be read again from these tensors, in the precision in which it was read."""
        if cut is None:
            raise NotReplayableError(f"what was read at {where(read.place)} is of a tensor that no program holds")
        if (read.before, read.of) in self._read:
            return
        recorded = read.number
        found = Interpreter(self._step, self._trace, tensors=self._tensors)._number(read, cut)
        if not is_whole(recorded):
            recorded = Interpreter(self._step, self._trace)._number(read, cut)
        type_ = type_of(self._step, read.of[0])
        if not are_same(recorded, found, lambda: self._spread(cut), 0.0 if type_ is None else unit_of(type_.dtype)):
            raise ControlDiffersError(sentence(read, recorded, found))
        self._read.add((read.before, read.of))

    def _number(self, read: NumberRead, cut: Cut) -> Any:
        values = self._values_of(cut, read.of, {})
        if read.call is None:
            return listed(values[read.of[0]])
        func, _ = operation(read.call.op)
        return plain_number(func(*decoded(read.call.args, values.__getitem__, exact=False)))

    def _spread(self, cut: Cut) -> float:
        """How far shaken runs lie from the unshaken one."""
        runs = [Interpreter(self._step, self._trace, tensors=self._tensors, exact=True, shaken=one) for one in SEEDS]
        exact: Any = Interpreter(self._step, self._trace, tensors=self._tensors, exact=True).array_of(cut)
        return max(float(np.abs(run.array_of(cut) - exact).max(initial=0)) for run in runs)

    def _values_of(
        self, cut: Cut, wanted: Sequence[Ref], decided: Mapping[Ref, torch.Tensor]
    ) -> dict[Ref, torch.Tensor]:
        left = Counter(ref for number in cut.nodes for ref in needs(self._step, number))
        left.update(wanted)
        values: dict[Ref, torch.Tensor] = {}
        for ref, site in cut.given.items():
            values[ref] = self._tracked(ref, self._given(ref, site, type_of(self._step, ref)))
        for number in cut.nodes:
            needed = needs(self._step, number)
            self._values = _by_node(values, needed)
            for at, tensor in enumerate(self._run(number)):
                ref = Ref(number, at)
                values.setdefault(ref, self._tracked(ref, decided.get(ref, tensor)))
            for ref in needed:
                left[ref] -= 1
                if left[ref] <= 0:
                    values.pop(ref, None)
        self._values = {}
        return {ref: values[ref] for ref in wanted}

    def derivative(self, cut: Cut, by: Sequence[Ref], gradient: Array) -> list[Array]:
        """The gradients by values that a cut starts from, given that of its target: autograd through its calls.

        So a changed forward has the backward of the change, where the recorded one is that of what was recorded. A
        program does not say what ran without gradients or by a custom derivative: ask the unchanged forward first.
        """
        self._differentiates = frozenset(by)
        try:
            with torch.enable_grad():
                values = self._values_of(cut, [cut.target, *by], {})
                given = tensor_of(gradient).to(values[cut.target].dtype)
                own = [values[ref] for ref in by]
                found = torch.autograd.grad(values[cut.target], own, given, materialize_grads=True)
        except FAILURES as error:
            raise NotReplayableError(f"the calls cannot be differentiated: {error}") from None
        finally:
            self._differentiates = None
        return [lifted(one).resolve_conj().contiguous().numpy() for one in found]

    def array_of(self, cut: Cut) -> Array:
        """The same as numpy has it: floats as float64, which holds every number of the others."""
        tensor = self.value_of(cut).resolve_conj().resolve_neg()
        array: Array = lifted(tensor).contiguous().numpy()
        return array

    def _given(self, ref: Ref, site: Site, type_: Type | None) -> torch.Tensor:
        array = self._tensors(site)
        if array is None:
            array = array_of_site(self._trace, site)
        array = part_of(array, self._taken.get(ref))
        if type_ is None or array.shape != type_.shape:
            raise NotReplayableError(f"{site} has the shape {list(array.shape)}, which the program does not expect")
        return laid_out(self._converted(array, type_.dtype), type_)

    def _converted(self, array: Array, dtype: str) -> torch.Tensor:
        """An array in the dtype that the program has there, or in the one that this is lifted to."""
        kind = TORCH_DTYPES.get(dtype)
        if kind is None:
            raise NotReplayableError(f"dtype {dtype} is none of those that a trace can hold")
        return tensor_of(array).to(LIFTED.get(kind, kind) if self._exact else kind)

    def _lifted(self, tensor: torch.Tensor) -> torch.Tensor:
        return lifted(tensor) if self._exact else tensor

    def _run(self, number: int) -> Values:
        node = self._step.nodes[number]
        try:
            with torch.set_grad_enabled(self._differentiates is not None):
                return self._leaf(number, node) if isinstance(node, Leaf) else self._call(number, node)
        except NotReplayableError:
            raise
        except FAILURES as error:
            what = "a leaf" if isinstance(node, Leaf) else node.op
            why = str(error).splitlines() or [type(error).__name__]
            raise NotReplayableError(f"{what} failed: {why[0]}") from None

    def value(self, ref: Ref) -> torch.Tensor:
        """What a reference stands for, if it was computed and kept."""
        found: torch.Tensor = self._values[ref.node][ref.at]
        return found

    def _leaf(self, number: int, leaf: Leaf) -> Values:
        """A tensor that is given."""
        site = leaf.source.site if isinstance(leaf.source, Earlier) else leaf.source
        own = self._tensors(site) if isinstance(site, Site) else None
        taken = self._taken.get(Ref(number))
        array = part_of(array_of_leaf(whole_leaf(leaf, taken), self._trace) if own is None else own, taken)
        if array.shape != leaf.type.shape:
            raise NotReplayableError(f"{site} has the shape {list(array.shape)}, which the program does not expect")
        return (laid_out(self._converted(array, leaf.type.dtype), leaf.type),)

    def _call(self, number: int, call: Call) -> Values:
        """The results of a call, from the values of what it reads."""
        if call.drawn is not None and len(call.drawn) == len(call.results):
            drawn = [self._values[call.drawn[at]][0] for at in range(len(call.drawn))]
            self._check(number, call, drawn)
            return drawn
        func, facts = operation(call.op)
        reading = self.value if self._shaking is None else self._shaking.reading(number, func, self.value)
        results = self._called(number, call, func, facts, reading) if call.drawn is None else self._drawn(call, reading)
        self._check(number, call, results)
        return results if self._shaking is None else self._shaking.results(number, func, results)

    def _check(self, number: int, call: Call, results: Values) -> None:
        """What a program says of its results must be true, or what reads them would be misled."""
        if len(results) != len(call.results):
            said = f"the program says {len(call.results)}"
            raise NotReplayableError(f"{call.op} gives {len(results)} tensors where {said}")
        for tensor, type_ in zip(results, call.results, strict=True):
            if type_ is None:
                continue
            found = next((short for short, kind in TORCH_DTYPES.items() if kind == tensor.dtype), type_.dtype)
            if self._exact and tensor.dtype in LIFTED.values():
                found = type_.dtype
            said = f"{type_.dtype} {list(type_.shape)}"
            if self._is_others and found == type_.dtype and tuple(tensor.shape) != type_.shape:
                place = where(self._step.as_written(number).place)
                now = f"from these tensors it is {list(tensor.shape)}; other calls may follow"
                raise ControlDiffersError(f"control differs at {place}: {call.op} gave {said} there, and {now}")
            if (found, tuple(tensor.shape)) != (type_.dtype, type_.shape):
                raise NotReplayableError(f"{call.op} gives {found} {list(tensor.shape)} where the program says {said}")

    def _called(self, number: int, call: Call, func: Any, facts: Facts, value: Reading) -> Values:
        """A call made as it was, else opened to others that can be made."""
        if facts.draws:
            raise NotReplayableError(f"{call.op} draws random numbers, and what it drew was not stored")
        args = decoded(call.args, value, exact=self._exact)
        if facts.base == "detach_":  # which refuses views, as every value is here
            return [torch.ops.aten.alias(args[0])]
        if self._differentiates is not None and facts.base in ("detach", "as_strided_scatter"):
            if facts.base == "detach" and self._stops(number):
                raise NotReplayableError("the model detaches a value here, and which gradients that stops is not known")
            return [differentiable(facts.base, args)]
        kwargs = {name: decoded(item, value, exact=self._exact) for name, item in call.kwargs.items()}
        try:
            results = made(func, facts, args, kwargs, len(call.results), torch.is_grad_enabled())
        except RuntimeError as error:
            found = made_otherwise(func, facts, args, kwargs, call, error) or self._by_function(number, call, value)
            if found is None:
                raise
            results = found
        types = [*call.results, *[None] * len(results)]
        return [self._settled(tensor, type_) for tensor, type_ in zip(results, types, strict=False)]

    def _stops(self, number: int) -> bool:
        """Whether the model detaches by this call, not autograd, which does so to keep what it wrote over."""
        written = self._step.as_written(number)
        name = (written.function if isinstance(written, Call) else written.op) or ""
        return "detach" in name or "data" in name

    def _by_function(self, number: int, call: Call, value: Reading) -> Values | None:
        """A device's kernel as the function that the model called, which gave what the kernel gave."""
        function = function_behind(self._step, number)
        if function is None:
            return None
        args = decoded(function.args, value, exact=self._exact)
        kwargs = {name: decoded(item, value, exact=self._exact) for name, item in function.kwargs.items()}
        given = zip(function.results, flat(FUNCTIONS_BY_NAME[function.op](*args, **kwargs)), strict=True)
        own = {ref.at: tensor for ref, tensor in given if ref.node == number}
        return [own.get(at, unknown(type_)) for at, type_ in enumerate(call.results)]

    def _settled(self, tensor: torch.Tensor, type_: Type | None) -> torch.Tensor:
        """A result in float64, if that is asked for, or in the dtype that another device gave; laid out as it was."""
        tensor = self._lifted(tensor)
        if type_ is None or tuple(tensor.shape) != type_.shape:
            return tensor
        wanted = TORCH_DTYPES.get(type_.dtype)
        if type_.device != "cpu" and not self._exact and wanted is not None and tensor.is_floating_point():
            tensor = tensor.to(wanted)
        return tensor if lies_so(tensor, type_) else laid_out(tensor, type_)

    def _drawn(self, call: Call, value: Reading) -> Values:
        """A call that draws random numbers and computes with them: with those that it drew."""
        given = {at: self._values[leaf][0] for at, leaf in (call.drawn or {}).items()}
        rest = AFTER_DRAWING.get(call.op.split(".")[1])
        if rest is None:
            raise NotReplayableError(f"{call.op} draws random numbers inside, and not all it made was stored")
        return rest(decoded(call.args, value, exact=self._exact), given[1])


def _by_node(values: Mapping[Ref, torch.Tensor], refs: Sequence[Ref]) -> dict[int, Any]:
    found: dict[int, dict[int, torch.Tensor]] = {}
    for ref in refs:
        found.setdefault(ref.node, {})[ref.at] = values[ref]
    return found
