"""Runs a program again, call by call, from what a trace holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

from ..dtypes import ML_NAMES, NUMPY_NAMES
from ..errors import FirstdriftError
from ..sites import Site
from ..strict_json import NON_FINITE, Json
from ..traces import Array, Trace
from .calls import Bytes, Call, Earlier, Inline, Leaf, Missing, Node, Ref, Step, Type, reads
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

Values = Sequence[torch.Tensor]


class NotReplayableError(FirstdriftError, RuntimeError):
    """A call cannot be made again; the message says why."""


class Interpreter:
    """The values of one step, computed in order; each is let go after its last reader unless it is kept."""

    def __init__(self, step: Step, trace: Trace) -> None:
        self._step = step
        self._trace = trace
        self._values: dict[int, Values] = {}

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
        return self._values[ref.node][ref.at]

    def leaf(self, leaf: Leaf) -> Values:
        """A tensor that is given."""
        array = _array(leaf, self._trace)
        return (_laid_out(_tensor(array, leaf.type.dtype), leaf.type),)

    def call(self, call: Call) -> Values:
        """The results of a call, from the values of what it reads."""
        if call.drawn is not None:
            return self._drawn(call, call.drawn)
        func, facts = operation(call.op)
        if facts.draws:
            raise NotReplayableError(f"{call.op} draws random numbers, and what it drew was not stored")
        args = _decoded(call.args, self.value)
        kwargs = {name: _decoded(item, self.value) for name, item in call.kwargs.items()}
        results: Values = ()
        for gradients in (False, True):  # some operations keep more where gradients will be asked for
            with torch.set_grad_enabled(gradients):
                given, named = _with_copies(facts, args, kwargs)
                results = results_of(func(*given, **named), written_by(facts, tuple(given), named))
            if len(results) == len(call.results):
                break
        _check(call, results)
        return results

    def _drawn(self, call: Call, drawn: Mapping[int, int]) -> Values:
        """A call that draws random numbers: those that it drew."""
        given = {at: self._values[leaf][0] for at, leaf in drawn.items()}
        if len(given) == len(call.results):
            drawn_all = [given[at] for at in range(len(given))]
            _check(call, drawn_all)
            return drawn_all
        rest = _AFTER_DRAWING.get(call.op.split(".")[1])
        if rest is None:
            raise NotReplayableError(f"{call.op} draws random numbers inside, and not all it made was stored")
        results = rest(_decoded(call.args, self.value), given[1])
        _check(call, results)
        return results


@contextmanager
def as_recorded(header: Mapping[str, Json]) -> Iterator[None]:
    """With as many threads as the run had: sums are split among them, which changes how they round."""
    threads, before = header.get("threads"), torch.get_num_threads()
    if type(threads) is int and 0 < threads <= 4096:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
    site: Site = source.site if isinstance(source, Earlier) else source
    try:
        return trace.array(site)
    except FirstdriftError as error:
        raise NotReplayableError(str(error)) from None


def _numpy_of(dtype: str) -> Any:
    return np.dtype(NUMPY_NAMES[dtype]) if dtype in NUMPY_NAMES else np.float64


def _tensor(array: Array, dtype: str) -> torch.Tensor:
    """An array as a tensor of its own."""
    kind = _TORCH_DTYPES.get(dtype)
    if kind is None:
        raise NotReplayableError(f"dtype {dtype} is none of those that a trace can hold")
    if array.dtype.kind == "V" or array.dtype.name in ML_NAMES.values():
        bits = np.uint8 if array.dtype.itemsize == 1 else np.int16
        return torch.from_numpy(np.array(array).view(bits)).view(kind)
    return torch.from_numpy(np.array(array)).to(kind)


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


def _decoded(item: Any, value: Callable[[Ref], torch.Tensor]) -> Any:
    """Arguments as torch takes them."""
    if isinstance(item, Ref):
        return value(item)
    if isinstance(item, tuple | list):
        return [_decoded(one, value) for one in item]
    if not isinstance(item, Mapping):
        return item
    ((tag, inner),) = item.items()  # an object has one key, which says what it is
    return _TAGGED[tag](inner) if tag in _TAGGED else _lost(tag)


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
    for at, name in written:
        if at < len(args):
            args[at] = _copied(args[at], facts.reshapes)
        elif name in kwargs:
            kwargs[name] = _copied(kwargs[name], facts.reshapes)
    return args, kwargs


def _copied(item: Any, reshapes: bool) -> Any:
    if isinstance(item, list):
        return [_copied(one, reshapes) for one in item]
    if not isinstance(item, torch.Tensor):
        return item
    if reshapes:
        return torch.ops.aten.alias(item)
    # With the same strides, gaps included: a kernel that meets gaps may round otherwise.
    return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device=item.device).copy_(item)


def _check(call: Call, results: Values) -> None:
    """What a program says of its results must be true, or what reads them would be misled."""
    if len(results) != len(call.results):
        raise NotReplayableError(f"{call.op} gives {len(results)} tensors where the program says {len(call.results)}")
    for tensor, type_ in zip(results, call.results, strict=True):
        if type_ is None:
            continue
        found = next((short for short, kind in _TORCH_DTYPES.items() if kind == tensor.dtype), type_.dtype)
        if (found, tuple(tensor.shape)) != (type_.dtype, type_.shape):
            said = f"{type_.dtype} {list(type_.shape)}"
            raise NotReplayableError(f"{call.op} gives {found} {list(tensor.shape)} where the program says {said}")


def _native_dropout(args: Any, mask: torch.Tensor) -> Values:
    keep = 1.0 - args[1]
    mask = mask.to(torch.bool)
    return [(args[0] * mask).mul_(0.0 if keep == 0.0 else 1.0 / keep), mask]


def _rrelu(args: Any, noise: torch.Tensor) -> Values:
    return [torch.where(args[0] <= 0, args[0] * noise, args[0]), noise]


# What a call makes of the numbers that it drew, where it draws and computes in one.
_AFTER_DRAWING: dict[str, Callable[[Any, torch.Tensor], Values]] = {
    "native_dropout": _native_dropout,
    "_fused_dropout": _native_dropout,
    "rrelu_with_noise": _rrelu,
    "rrelu_with_noise_": _rrelu,
}
