"""Runs a program again, call by call, from what a trace holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from ..dtypes import ML_NAMES, NUMPY_NAMES, dtype_name
from ..errors import FirstdriftError
from ..sites import Site
from ..strict_json import NON_FINITE
from ..traces import Array, Trace
from .calls import Bytes, Call, Earlier, Inline, Leaf, Missing, Node, Ref, Step, Type, reads
from .cuts import Cut, type_of
from .op_facts import Facts, facts_of, results_of, written_by

# Operations of ATen that reach outside the tensors they are given.
_FORBIDDEN = frozenset({"from_file", "set_", "set", "set_data", "resize_storage_bytes_", "_resize_output_"})
# What a call may raise on arguments that are wrong; it is the program that is wrong then.
_FAILURES = (
    RuntimeError, TypeError, ValueError, IndexError, KeyError, OverflowError, NotImplementedError, AssertionError,
    MemoryError, AttributeError,
)  # fmt: skip
MOST_GAPS = 64 << 20  # bytes that a leaf may span beyond its own: a lie about strides gets no more
_SPACES = {"aten": torch.ops.aten, "prims": torch.ops.prims}
_LONG = {"f": "float", "c": "complex", "i": "int", "u": "uint"}
_TORCH_DTYPES = {
    **{name: getattr(torch, f"{_LONG[name[0]]}{name[1:]}") for name in NUMPY_NAMES if name[0] in _LONG},
    **{short: getattr(torch, name) for short, name in ML_NAMES.items() if hasattr(torch, name)},
    "bool": torch.bool,
}

_LIFTED = {
    kind: torch.complex128 if kind.is_complex else torch.float64
    for kind in _TORCH_DTYPES.values()
    if kind.is_complex or kind.is_floating_point
}

Values = Sequence[torch.Tensor]


class NotReplayableError(FirstdriftError, RuntimeError):
    """A call cannot be made again; the message says why."""


class Interpreter:
    """The values of one step, computed in order; each is let go after its last reader unless it is kept.

    `tensors` gives the numbers of a site, where they are not the trace's own. With `exact`, everything that is float
    is float64, and complex complex128: tensors, results, and the dtypes that calls ask for, casts to shorter ones
    among them. Constants keep their values, the least number of a dtype included; drawn numbers are those drawn.
    """

    def __init__(
        self, step: Step, trace: Trace, *, tensors: Callable[[Site], Array | None] | None = None, exact: bool = False
    ) -> None:
        self._step = step
        self._trace = trace
        self._tensors = tensors or (lambda site: None)
        self._exact = exact
        self._values: dict[int, Any] = {}  # results of nodes, by number

    def run(self, keep: frozenset[int] = frozenset()) -> Iterator[tuple[int, Values | NotReplayableError]]:
        """Every node with what it gives, or why it cannot be had; nodes in `keep` stay available to `value`."""
        left = Counter(ref.node for node in self._step.nodes for ref in reads(node))
        for node in self._step.nodes:
            left.update((node.drawn or {}).values() if isinstance(node, Call) else ())
        failed: dict[int, str] = {}
        for number, node in enumerate(self._step.nodes):
            needed = [ref.node for ref in reads(node)]
            if isinstance(node, Call):
                needed += (node.drawn or {}).values()
            try:
                missing = next((one for one in needed if one in failed), None)
                if missing is not None:
                    raise NotReplayableError(failed[missing])
                self._values[number] = self._run(node)
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
        """What a cut gives; raises NotReplayableError where one of its calls cannot be made."""
        left = Counter(ref for number in cut.nodes for ref in _needs(self._step.nodes[number]))
        left[cut.target] += 1
        values: dict[Ref, torch.Tensor] = {}
        for ref, site in cut.given.items():
            values[ref] = self._given(site, type_of(self._step, ref))
        for number in cut.nodes:
            node = self._step.nodes[number]
            self._values = _by_node(values, _needs(node))
            for at, tensor in enumerate(self._run(node)):
                values.setdefault(Ref(number, at), tensor)
            for ref in _needs(node):
                left[ref] -= 1
                if left[ref] <= 0:
                    values.pop(ref, None)
        return values[cut.target]

    def array_of(self, cut: Cut) -> Array:
        """The same as numpy has it: floats as float64, which holds every number of the others."""
        tensor = self.value_of(cut).resolve_conj().resolve_neg()
        array: Array = tensor.to(_LIFTED.get(tensor.dtype, tensor.dtype)).contiguous().numpy()
        return array

    def _given(self, site: Site, type_: Type | None) -> torch.Tensor:
        array = self._tensors(site)
        if array is None:
            array = _of_site(self._trace, site)
        if type_ is None or array.shape != type_.shape:
            raise NotReplayableError(f"{site} has the shape {list(array.shape)}, which the program does not expect")
        return _laid_out(self._converted(array, type_.dtype), type_)

    def _converted(self, array: Array, dtype: str) -> torch.Tensor:
        """An array in the dtype that the program has there, or in the one that this is lifted to."""
        kind = _TORCH_DTYPES.get(dtype)
        if kind is None:
            raise NotReplayableError(f"dtype {dtype} is none of those that a trace can hold")
        return _tensor(array).to(_LIFTED.get(kind, kind) if self._exact else kind)

    def _lifted(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(_LIFTED.get(tensor.dtype, tensor.dtype)) if self._exact else tensor

    def _run(self, node: Node) -> Values:
        try:
            with torch.no_grad():
                return self.leaf(node) if isinstance(node, Leaf) else self.call(node)
        except NotReplayableError:
            raise
        except _FAILURES as error:
            what = "a leaf" if isinstance(node, Leaf) else node.op
            why = str(error).splitlines() or [type(error).__name__]
            raise NotReplayableError(f"{what} failed: {why[0]}") from None

    def value(self, ref: Ref) -> torch.Tensor:
        """What a reference stands for, if it was computed and kept."""
        found: torch.Tensor = self._values[ref.node][ref.at]
        return found

    def leaf(self, leaf: Leaf) -> Values:
        """A tensor that is given."""
        site = leaf.source.site if isinstance(leaf.source, Earlier) else leaf.source
        own = self._tensors(site) if isinstance(site, Site) else None
        array = _array(leaf, self._trace) if own is None else own
        if array.shape != leaf.type.shape:
            raise NotReplayableError(f"{site} has the shape {list(array.shape)}, which the program does not expect")
        return (_laid_out(self._converted(array, leaf.type.dtype), leaf.type),)

    def call(self, call: Call) -> Values:
        """The results of a call, from the values of what it reads."""
        if call.drawn is not None:
            return self._drawn(call, call.drawn)
        func, facts = operation(call.op)
        if facts.draws:
            raise NotReplayableError(f"{call.op} draws random numbers, and what it drew was not stored")
        args = _decoded(call.args, self.value, exact=self._exact)
        if facts.base == "detach_":  # which refuses views, as every value is here
            return [torch.ops.aten.alias(args[0])]
        kwargs = {name: _decoded(item, self.value, exact=self._exact) for name, item in call.kwargs.items()}
        results: Values = ()
        for gradients in (False, True):  # some operations keep more where gradients will be asked for
            with torch.set_grad_enabled(gradients):
                given, named = _with_copies(facts, args, kwargs)
                results = results_of(func(*given, **named), written_by(facts, tuple(given), named))
            if len(results) == len(call.results):
                break
        results = [self._lifted(one) for one in results]
        _check(call, results, exact=self._exact)
        return results

    def _drawn(self, call: Call, drawn: Mapping[int, int]) -> Values:
        """A call that draws random numbers: those that it drew."""
        given = {at: self._values[leaf][0] for at, leaf in drawn.items()}
        if len(given) == len(call.results):
            drawn_all = [given[at] for at in range(len(given))]
            _check(call, drawn_all, exact=self._exact)
            return drawn_all
        rest = _AFTER_DRAWING.get(call.op.split(".")[1])
        if rest is None:
            raise NotReplayableError(f"{call.op} draws random numbers inside, and not all it made was stored")
        results = rest(_decoded(call.args, self.value, exact=self._exact), given[1])
        _check(call, results, exact=self._exact)
        return results


@cache
def operation(name: str) -> tuple[Callable[..., Any], Facts]:
    """An operation by its name, if it is one of ATen's that compute: a program never names code to import."""
    space, _, rest = name.partition(".")
    base, _, overload = rest.partition(".")
    if space not in _SPACES or base in _FORBIDDEN or base.startswith("__"):
        raise NotReplayableError(f"{name} is not on the list of operations that are run from a file")
    func = getattr(getattr(_SPACES[space], base, None), overload or "default", None)
    # TorchScript has operators of its own there, which seed generators or write files; the dispatcher has none of them.
    if not isinstance(func, torch._ops.OpOverload) or not torch._C._dispatch_has_kernel(func.name()):
        raise NotReplayableError(f"{name} is no operation of torch {torch.__version__}")
    facts = facts_of(func)
    if not func._schema.returns and not facts.written:
        raise NotReplayableError(
            f"{name} is not on the list of operations that are run from a file: it computes nothing"
        )
    return func, facts


def _array(leaf: Leaf, trace: Trace) -> Array:
    """The numbers of a leaf."""
    source, type_ = leaf.source, leaf.type
    if isinstance(source, Missing):
        raise NotReplayableError(f"{leaf.name or 'a tensor'} is not in the trace ({source.why})")
    if isinstance(source, Inline):
        elements = [NON_FINITE.get(one, one) if isinstance(one, str) else one for one in source.elements]
        return np.array(elements, dtype=_numpy_of(type_.dtype)).reshape(type_.shape)
    if isinstance(source, Bytes):
        if source.bits:
            packed = trace.stored(source.at, "u8", (source.at[2],), "random numbers")
            count = int(np.prod(type_.shape, dtype=np.int64))
            return np.unpackbits(packed.view(np.uint8), count=count).reshape(type_.shape)
        return trace.stored(source.at, type_.dtype, type_.shape, "a leaf of the program")
    return _of_site(trace, source.site if isinstance(source, Earlier) else source)


def _of_site(trace: Trace, site: Site) -> Array:
    try:
        return trace.array(site)
    except FirstdriftError as error:
        raise NotReplayableError(str(error)) from None


def _numpy_of(dtype: str) -> Any:
    return np.dtype(NUMPY_NAMES[dtype]) if dtype in NUMPY_NAMES else np.float64


def _tensor(array: Array) -> torch.Tensor:
    """An array as a tensor of its own."""
    short = dtype_name(array.dtype)
    if short in ML_NAMES:
        bits = np.uint8 if array.dtype.itemsize == 1 else np.int16
        return torch.from_numpy(np.array(array).view(bits)).view(_TORCH_DTYPES[short])
    return torch.from_numpy(np.array(array))


def _laid_out(tensor: torch.Tensor, type_: Type) -> torch.Tensor:
    """A tensor with the strides that it had: how it lies in memory decides how some operations round."""
    if type_.strides is None:
        return tensor
    narrow, strides = tensor, list(type_.strides)
    for dim, (size, stride) in enumerate(zip(type_.shape, type_.strides, strict=True)):
        if stride == 0 and size > 1:
            narrow = narrow.narrow(dim, 0, 1)
    reach = sum((size - 1) * stride for size, stride in zip(narrow.shape, strides, strict=True))
    if (reach + 1 - narrow.numel()) * tensor.element_size() > MOST_GAPS:
        return tensor
    laid = torch.empty_strided(narrow.shape, strides, dtype=tensor.dtype).copy_(narrow)
    return laid.as_strided(type_.shape, strides)


def _decoded(item: Any, value: Callable[[Ref], torch.Tensor], *, exact: bool) -> Any:
    """Arguments as torch takes them; `exact` with dtypes lifted."""
    if isinstance(item, Ref):
        return value(item)
    if isinstance(item, tuple | list):
        return [_decoded(one, value, exact=exact) for one in item]
    if not isinstance(item, Mapping):
        return item
    ((tag, inner),) = item.items()  # an object has one key, which says what it is
    found = _TAGGED[tag](inner) if tag in _TAGGED else _lost(tag)
    return _LIFTED.get(found, found) if exact and tag == "dtype" else found


def _lost(what: Any) -> Any:
    raise NotReplayableError(f"an argument was lost: {what}")


def _named(kind: type) -> Callable[[Any], Any]:
    """Look a name up among torch's constants of a kind, and nowhere else: torch imports modules that are asked for."""
    there = {str(one).removeprefix("torch."): one for one in vars(torch).values() if isinstance(one, kind)}
    return lambda name: there[name] if isinstance(name, str) and name in there else _lost(f"{kind.__name__} {name}")


_OTHER_DTYPES = _named(torch.dtype)
_TAGGED: dict[str, Callable[[Any], Any]] = {
    "lost": _lost,
    "dtype": lambda name: _TORCH_DTYPES.get(name) or _OTHER_DTYPES(name),
    "device": lambda name: torch.device("meta" if name == "meta" else "cpu"),  # whatever it ran on
    "layout": _named(torch.layout),
    "memory_format": _named(torch.memory_format),
    "float": lambda text: NON_FINITE.get(text, float("nan")),
    "complex": lambda parts: complex(
        *(_TAGGED["float"](one["float"]) if isinstance(one, dict) else one for one in parts)
    ),
}


def _with_copies(facts: Facts, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with copies of what is written to: a value never changes."""
    written = [(at, name) for at, name in facts.written]
    if facts.unsaid is not None and args[facts.unsaid[1]]:
        written += [(at, "") for at in facts.unsaid[0]]
    args, kwargs = list(args), dict(kwargs)
    copies: dict[int, torch.Tensor] = {}  # of a tensor that is given twice, one
    for at, name in written:
        if at < len(args):
            args[at] = _copied(args[at], facts.reshapes, copies)
        elif name in kwargs:
            kwargs[name] = _copied(kwargs[name], facts.reshapes, copies)
    return args, kwargs


def _copied(item: Any, reshapes: bool, copies: dict[int, torch.Tensor]) -> Any:
    if isinstance(item, list):
        return [_copied(one, reshapes, copies) for one in item]
    if not isinstance(item, torch.Tensor):
        return item
    if reshapes:
        return torch.ops.aten.alias(item)
    if id(item) not in copies:  # with the same strides, gaps included: a kernel that meets gaps may round otherwise
        empty = torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device=item.device)
        copies[id(item)] = empty.copy_(item)
    return copies[id(item)]


def _needs(node: Node) -> list[Ref]:
    """What a node is computed from, random numbers that it drew included."""
    drawn = node.drawn if isinstance(node, Call) else None
    return reads(node) + [Ref(leaf) for leaf in (drawn or {}).values()]


def _by_node(values: Mapping[Ref, torch.Tensor], refs: Sequence[Ref]) -> dict[int, Any]:
    found: dict[int, dict[int, torch.Tensor]] = {}
    for ref in refs:
        found.setdefault(ref.node, {})[ref.at] = values[ref]
    return found


def _check(call: Call, results: Values, *, exact: bool) -> None:
    """What a program says of its results must be true, or what reads them would be misled."""
    if len(results) != len(call.results):
        raise NotReplayableError(f"{call.op} gives {len(results)} tensors where the program says {len(call.results)}")
    for tensor, type_ in zip(results, call.results, strict=True):
        if type_ is None:
            continue
        found = next((short for short, kind in _TORCH_DTYPES.items() if kind == tensor.dtype), type_.dtype)
        if exact and tensor.dtype in _LIFTED.values():
            found = type_.dtype
        if (found, tuple(tensor.shape)) != (type_.dtype, type_.shape):
            said = f"{type_.dtype} {list(type_.shape)}"
            raise NotReplayableError(f"{call.op} gives {found} {list(tensor.shape)} where the program says {said}")


def _native_dropout(args: Any, mask: torch.Tensor) -> Values:
    mask = mask.to(torch.bool)
    if args[2:3] == [False]:  # not training: nothing was dropped
        return [args[0].clone(), mask]
    keep = 1.0 - args[1]
    return [(args[0] * mask).mul_(0.0 if keep == 0.0 else 1.0 / keep), mask]


def _rrelu(args: Any, noise: torch.Tensor) -> Values:
    training = args[4] if len(args) > 4 else False
    if not training:  # nothing was drawn, and the noise was not read
        lower, upper = (args[2:4] + [1 / 8, 1 / 3][len(args[2:4]) :])[:2]
        return [torch.nn.functional.leaky_relu(args[0], (lower + upper) / 2), noise]
    return [torch.where(args[0] <= 0, args[0] * noise, args[0]), noise]


# What a call makes of the numbers that it drew, where it draws and computes in one.
_AFTER_DRAWING: dict[str, Callable[[Any, torch.Tensor], Values]] = {
    "native_dropout": _native_dropout,
    "_fused_dropout": _native_dropout,
    "rrelu_with_noise": _rrelu,
    "rrelu_with_noise_": _rrelu,
}
