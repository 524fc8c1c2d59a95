"""What one node of a program gives: a leaf from the trace, a call from the values of what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from ...core.sites import Site
from ...core.traces import Array, Trace
from ..calls import Call, ControlDiffersError, Earlier, Leaf, NotReplayableError, Ref, Step, Type
from ..op_facts import Facts, flat
from ..torch_values import DTYPE_NAMES, LIFTED, TORCH_DTYPES, decoded, lifted, tensor_of
from .calling import (
    AFTER_DRAWING,
    FAILURES,
    FUNCTIONS_BY_NAME,
    differentiable,
    made,
    made_otherwise,
    operation,
    unknown,
)
from .parts import Taken, part_of, whole_leaf
from .read_numbers import where
from .rounding import Rounding
from .shaking import Shake, Shaking
from .stored_tensors import array_of_leaf, array_of_site, laid_out, lies_so

Values = Sequence[torch.Tensor]
Reading = Callable[[Ref], torch.Tensor]
Tensors = Callable[[Site], Array | None]


class Nodes:
    """The nodes of one step, each run by itself; `differentiates` while gradients are to go through its calls, and
    `is_changed` once it is a changed program, whose tensors may have other shapes."""

    def __init__(
        self, step: Step, trace: Trace, tensors: Tensors | None, *, exact: bool, shaken: Shake | None,
        taken: Mapping[Ref, Taken], kept: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self._step = step
        self._trace = trace
        self._tensors = tensors or (lambda site: None)
        self._is_others = tensors is not None
        self._exact = exact
        self._shaking = None if shaken is None else Shaking(step, shaken)
        self._taken = taken
        self._kept = kept
        self.differentiates = False
        self.is_changed = False

    def given(self, ref: Ref, site: Site) -> torch.Tensor:
        """The value of a recorded site."""
        if self._shaking is not None:
            return self._shaking.given(ref, lambda: self._recorded(ref, site))
        return self._recorded(ref, site)

    def decided(self, make: Callable[[], Mapping[Ref, torch.Tensor]]) -> Mapping[Ref, torch.Tensor]:
        """What an unshaken run decides: one for all seeds, where they share what is not moved."""
        unmoved = None if self._shaking is None else self._shaking.unmoved
        return make() if unmoved is None else unmoved.once("decided", make)

    def _recorded(self, ref: Ref, site: Site) -> torch.Tensor:
        type_ = self._step.type_of(ref)
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

    def run(self, number: int, value: Reading) -> Values:
        """What a node gives, from the values of what it reads."""
        node = self._step.nodes[number]
        try:
            with torch.set_grad_enabled(self.differentiates):
                return self._leaf(number, node) if isinstance(node, Leaf) else self._call(number, node, value)
        except NotReplayableError:
            raise
        except FAILURES as error:
            what = "a leaf" if isinstance(node, Leaf) else node.op
            why = str(error).splitlines() or [type(error).__name__]
            raise NotReplayableError(f"{what} failed: {why[0]}") from None

    def _leaf(self, number: int, leaf: Leaf) -> Values:
        """A tensor that is given."""
        site = leaf.source.site if isinstance(leaf.source, Earlier) else leaf.source
        own = self._tensors(site) if isinstance(site, Site) else None
        taken = self._taken.get(Ref(number))
        array = part_of(array_of_leaf(whole_leaf(leaf, taken), self._trace) if own is None else own, taken)
        if array.shape != leaf.type.shape:
            raise NotReplayableError(f"{site} has the shape {list(array.shape)}, which the program does not expect")
        return (laid_out(self._converted(array, leaf.type.dtype), leaf.type),)

    def _call(self, number: int, call: Call, value: Reading) -> Values:
        if call.drawn is not None and len(call.drawn) == len(call.results):
            drawn = [value(Ref(call.drawn[at])) for at in range(len(call.drawn))]
            self._check(number, call, drawn)
            return drawn
        func, facts = operation(call.op)
        if call.drawn is None:
            results = self._called(number, call, func, facts, value)
        else:
            results = self._drawn(call, value, {at: value(Ref(leaf)) for at, leaf in call.drawn.items()})
        self._check(number, call, results)
        if number not in self._kept:
            return results
        return [as_cast(tensor, type_) for tensor, type_ in zip(results, call.results, strict=True)]

    def _check(self, number: int, call: Call, results: Values) -> None:
        """What a program says of its results must be true, or what reads them would be misled."""
        if len(results) != len(call.results):
            said = f"the program says {len(call.results)}"
            raise NotReplayableError(f"{call.op} gives {len(results)} tensors where {said}")
        for tensor, type_ in zip(results, call.results, strict=True):
            if type_ is None or self.is_changed:
                continue
            found = DTYPE_NAMES.get(tensor.dtype, type_.dtype)
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
        if self.differentiates and facts.base in ("detach", "as_strided_scatter"):
            if facts.base == "detach" and self._stops(number):
                raise NotReplayableError("the model detaches a value here, and which gradients that stops is not known")
            return [differentiable(facts.base, args)]
        kwargs = {name: decoded(item, value, exact=self._exact) for name, item in call.kwargs.items()}
        if self._shaking is not None:
            args, kwargs = self._shaking.scalars(number, args), self._shaking.scalars(number, kwargs)
        rounding = self._rounding(number, func)
        try:
            with rounding or nullcontext():
                results = made(func, facts, args, kwargs, len(call.results), torch.is_grad_enabled())
        except RuntimeError as error:  # made by way of others, each of which is rounded
            rounding = self._rounding(number, func)
            with rounding or nullcontext():
                found = made_otherwise(func, facts, args, kwargs, call, error) or self._by_function(number, call, value)
            if found is None:
                raise
            results = found
        if rounding is not None:
            results = rounding.stored(results)
        types = [*call.results, *[None] * len(results)]
        return [self._settled(tensor, type_) for tensor, type_ in zip(results, types, strict=False)]

    def _rounding(self, number: int, func: Any) -> Rounding | None:
        """What rounds the operations of a call at random; None where that is not asked for, or it rounds by itself."""
        return None if self._shaking is None or number in self._kept else self._shaking.around(number, func)

    def _stops(self, number: int) -> bool:
        """Whether the model detaches by this call, not autograd, which does so to keep what it wrote over."""
        written = self._step.as_written(number)
        name = (written.function if isinstance(written, Call) else written.op) or ""
        return "detach" in name or "data" in name

    def _by_function(self, number: int, call: Call, value: Reading) -> Values | None:
        """A device's kernel as the function that the model called, which gave what the kernel gave."""
        function = self._step.function_behind(number)
        if function is None:
            return None
        args = decoded(function.args, value, exact=self._exact)
        kwargs = {name: decoded(item, value, exact=self._exact) for name, item in function.kwargs.items()}
        given = zip(function.results, flat(FUNCTIONS_BY_NAME[function.op](*args, **kwargs)), strict=True)
        own = {ref.at: tensor for ref, tensor in given if ref.node == number}
        return [own.get(at, unknown(type_)) for at, type_ in enumerate(call.results)]

    def _settled(self, tensor: torch.Tensor, type_: Type | None) -> torch.Tensor:
        """A result in float64, if that is asked for, or in the dtype that another device gave; laid out as it was."""
        tensor = lifted(tensor) if self._exact else tensor
        if type_ is None or tuple(tensor.shape) != type_.shape:
            return tensor
        wanted = TORCH_DTYPES.get(type_.dtype)
        if type_.device != "cpu" and not self._exact and wanted is not None and tensor.is_floating_point():
            tensor = tensor.to(wanted)
        if self.is_changed and 0 in (type_.strides or ()):  # a changed result may not repeat there
            return tensor
        return tensor if lies_so(tensor, type_) else laid_out(tensor, type_)

    def _drawn(self, call: Call, value: Reading, given: Mapping[int, torch.Tensor]) -> Values:
        """A call that draws random numbers and computes with them: with those that it drew."""
        rest = AFTER_DRAWING.get(call.op.split(".")[1])
        if rest is None:
            raise NotReplayableError(f"{call.op} draws random numbers inside, and not all it made was stored")
        return rest(decoded(call.args, value, exact=self._exact), given[1])


def as_cast(tensor: torch.Tensor, type_: Type | None) -> torch.Tensor:
    """A tensor in float64 with the digits that a shorter dtype leaves it."""
    kind = None if type_ is None else TORCH_DTYPES.get(type_.dtype)
    return tensor if kind is None or kind not in LIFTED else tensor.to(kind).to(tensor.dtype)
