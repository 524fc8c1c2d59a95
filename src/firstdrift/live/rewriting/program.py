"""The calls by which the reference makes one tensor from what the candidate computed, recorded so that they can be run
again with something changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from ...capture.torch.names import modules_of
from ...sites import Site
from ...traces import Trace
from ..equivalence import is_inside
from ..forcing import Plan, ReplayError, replay
from ..sides import Side
from .expansions import EXPANSIONS

MOST_KEPT = 256 << 20  # bytes of intermediate results; of a longer program only the end is recorded

ROTARY = frozenset({"cos", "sin", "polar"})

Change = Callable[..., Any]  # what is called in place of a function, with the same arguments


class Ref(NamedTuple):
    """A tensor that an earlier call made: which call, and which of its results."""

    call: int
    at: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function of torch; tensors that other calls made stand in it as references."""

    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[torch.Tensor, ...]
    reads: tuple[Ref, ...]
    in_place: bool
    place: str  # the line of the model's code


@dataclass(frozen=True)
class Program:
    """The calls that one tensor depends on, in order; the last one makes it."""

    calls: Mapping[int, Call]
    result: Ref
    ahead: str = ""  # what reads the tensor: the class of a module, in small letters

    @property
    def made(self) -> torch.Tensor:
        """The tensor as it was made."""
        return self.calls[self.result.call].results[self.result.at]

    @property
    def expandable(self) -> bool:
        """Whether some call consists of smaller ones."""
        return any(call.name in EXPANSIONS for call in self.calls.values())

    @cached_property
    def angles(self) -> frozenset[int]:
        """The calls that take cosines or sines of angles: of positions and frequencies, and of nothing larger."""
        turning = (number for number, call in self.calls.items() if call.name in ROTARY)
        return frozenset(number for number in turning if all(_is_row(one) for one in self._read_by(number)))

    def _read_by(self, number: int) -> list[torch.Tensor]:
        """The tensors that a call depends on, and that no call made."""
        seen, left, found = {number}, [number], []
        while left:
            call = self.calls[left.pop()]
            found += [one for one in tree_flatten((call.args, dict(call.kwargs)))[0] if isinstance(one, torch.Tensor)]
            further = {ref.call for ref in call.reads} - seen
            seen |= further
            left += further
        return found

    def run(self, changes: Mapping[int, Change]) -> torch.Tensor:
        """The tensor once more, with other functions in place of some; only what depends on them is computed."""
        again: dict[int, Sequence[torch.Tensor]] = {}
        for number, call in self.calls.items():
            if number in changes or any(ref.call in again for ref in call.reads):
                again[number] = _called(call, changes.get(number, call.func), lambda ref: self._value(ref, again))
        return self._value(self.result, again)

    def _value(self, ref: Ref, again: Mapping[int, Sequence[torch.Tensor]]) -> torch.Tensor:
        return again[ref.call][ref.at] if ref.call in again else self.calls[ref.call].results[ref.at]

    def arguments(self, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a call was given, with tensors in place of references."""
        call = self.calls[number]
        return _resolved(call, lambda ref: self._value(ref, {}))

    def readers(self, number: int) -> Iterator[int]:
        """The calls that read a call's results."""
        return (n for n, call in self.calls.items() if any(ref.call == number for ref in call.reads))


def _called(call: Call, func: Change, value: Callable[[Ref], torch.Tensor]) -> Sequence[torch.Tensor]:
    args, kwargs = _resolved(call, value)
    if call.in_place:  # what it writes to belongs to the run that was recorded
        args = (args[0].clone(), *args[1:])
    returned = func(*args, **kwargs)
    return _tensors(args[0] if returned is None else returned)


def _resolved(call: Call, value: Callable[[Ref], torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = call.args, dict(call.kwargs)
    args, kwargs = tree_map(lambda item: value(item) if _is_ref(item) else item, given, is_leaf=_is_ref)
    return args, kwargs


def _is_row(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or sum(size > 1 for size in tensor.shape) <= 1


def _is_ref(item: Any) -> bool:
    return isinstance(item, Ref)


def _tensors(value: Any) -> tuple[torch.Tensor, ...]:
    return tuple(item for item in tree_flatten(value)[0] if isinstance(item, torch.Tensor))


class _Arrived(BaseException):
    """The tensor that was waited for has been made; nothing after it matters."""


class _Recorder(TorchFunctionMode):
    """Every call of a function of torch, until one tensor arrives at its site."""

    def __init__(self, sites: Container[Site], expanded: bool) -> None:
        super().__init__()
        self.sites = sites
        self.expanded = expanded
        self.calls: list[Call] = []
        self.makers: dict[int, Ref] = {}  # by the identity of tensors, all of which are kept alive
        self.alive: list[torch.Tensor] = []
        self.arrived: torch.Tensor | None = None
        self.kept = 0
        self.begun = False  # with the forward pass

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call it, and remember what was called with what."""
        name, kwargs = _name(func), kwargs or {}
        if not self.begun:
            return func(*args, **kwargs)
        if self.expanded and name in EXPANSIONS:
            with self:
                return EXPANSIONS[name](*args, **kwargs)
        given = tree_map(self._ref, (tuple(args), dict(kwargs)))
        in_place = _writes(name) and isinstance(args[0], torch.Tensor)
        if in_place:
            given = (self._before_writing(args[0], given[0]), given[1])
        returned = func(*args, **kwargs)
        results = _tensors(args[0] if in_place else returned)
        if results:
            reads = tuple(item for item in tree_flatten(given, is_leaf=_is_ref)[0] if _is_ref(item))
            self._keep(Call(func, name, given[0], given[1], results, reads, in_place, _place()))
        return returned

    def _before_writing(self, tensor: torch.Tensor, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a call that will write to its first: what was read before is kept as it was."""
        before = tensor.clone()
        self.alive.append(tensor)
        if not isinstance(args[0], Ref):
            return (before, *args[1:])
        number, at = args[0]
        made = self.calls[number]
        results = tuple(before if n == at else one for n, one in enumerate(made.results))
        self.calls[number] = replace(made, results=results)
        return args

    def _keep(self, call: Call) -> None:
        size = sum(one.nbytes for one in call.results if one._base is None)
        if self.kept + size > MOST_KEPT:
            self._forget()
        self.kept += size
        for at, tensor in enumerate(call.results):
            self.makers[id(tensor)] = Ref(len(self.calls), at)
        self.calls.append(call)

    def _forget(self) -> None:
        """Begin anew: what was made so far is given from here on."""
        self.calls.clear()
        self.makers.clear()
        self.alive.clear()
        self.kept = 0

    def _ref(self, item: Any) -> Any:
        return self.makers.get(id(item), item) if isinstance(item, torch.Tensor) else item

    def see(self, site: Site, tensor: torch.Tensor) -> None:
        """Stop where the tensor that is asked for arrives."""
        self.begun = self.begun or site.phase == "fwd"
        if site in self.sites:
            self.arrived = tensor
            raise _Arrived

    def program(self, ahead: str) -> Program | None:
        """The calls that the tensor depends on."""
        result = None if self.arrived is None else self.makers.get(id(self.arrived))
        if result is None:
            return None
        needed: set[int] = set()
        left = [result.call]
        while left:
            number = left.pop()
            if number not in needed:
                needed.add(number)
                left.extend(ref.call for ref in self.calls[number].reads)
        return Program({number: self.calls[number] for number in sorted(needed)}, result, ahead)


def recorded(
    side: Side, candidate: Trace, site: Site, plan: Plan, folder: Path, *, expanded: bool = False
) -> Program | None:
    """How the reference makes the tensor of a site from the candidate's; None where that cannot be followed.

    `expanded` is larger operations as the smaller ones they consist of.
    """
    if site.step or site.phase not in ("fwd", "loss"):
        return None
    alone = side if site.phase == "loss" else replace(side, loss_fn=None, optimizer=None)
    recorder = _Recorder(_same(candidate, site), expanded)
    try:
        with recorder:
            replay(alone, candidate, folder / f"program {expanded}", replace(plan, seen=recorder.see))
    except (_Arrived, ReplayError):
        pass
    return recorder.program(_reader(side, site))


def _same(candidate: Trace, site: Site) -> list[Site]:
    """A site, and where its tensor went into the modules around: it arrives there first."""
    at = candidate[site].at
    around = (
        one.site
        for one in candidate.records
        if one.at == at and one.site.phase == site.phase and one.site.port.startswith("in.")
    )
    inner = site.port.startswith("in.")
    return [site, *(one for one in around if inner and is_inside(site.name, one.name))]


def _reader(side: Side, site: Site) -> str:
    """The class of the module that reads a tensor, in small letters; nothing for what a module makes."""
    if site.phase != "fwd" or not site.port.startswith("in."):
        return ""
    return next((type(one).__name__.lower() for one, name in modules_of(side.model).items() if name == site.name), "")


def _name(func: Any) -> str:
    """What a function is called; that of an attribute, as `mT`, for what reads it."""
    name = getattr(func, "__name__", "")
    return getattr(func.__self__, "__name__", name) if name == "__get__" else name


def _writes(name: str) -> bool:
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _place() -> str:
    """The line of the model's code that makes a call: the nearest that is neither torch's nor ours."""
    frame = sys._getframe(2)
    while frame is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] in ("torch", "firstdrift"):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
