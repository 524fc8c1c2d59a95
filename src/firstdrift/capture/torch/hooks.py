"""The one place that touches torch's global state: calls of modules, `torch.autograd.backward`, taps.

Calls are watched at `nn.Module.__call__`, not by hooks. Hooks on modules switch off fast paths
(`nn.TransformerEncoderLayer` looks for them), are copied by `copy.deepcopy`, are seen by `torch.compile`, and do not
see what hooks behind them change. All is there while a trace is open, and gone while compiled code runs, so that
what is compiled never depends on being watched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.graph import GradientEdge

from ... import taps

Undo = Callable[[], None]


class Observer(Protocol):
    """Who is told what happens to a model."""

    def owns(self, module: nn.Module) -> bool: ...
    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None: ...
    def leave(self, module: nn.Module, output: Any) -> None: ...
    def fail(self, module: nn.Module, error: BaseException) -> None: ...
    def tapped(self, name: str, tensor: Any) -> bool: ...
    def begin_backward(self, roots: tuple[torch.Tensor, ...]) -> None: ...
    def end_backward(self, *, whole: bool) -> None: ...


_observers: list[Observer] = []
_undo: list[Undo] = []  # how to take away what is installed


def add(observer: Observer) -> None:
    """Tell an observer from now on."""
    _observers.append(observer)
    if len(_observers) == 1:
        _install()


def remove(observer: Observer) -> None:
    """Tell an observer no longer; the last one takes everything away with it."""
    if observer in _observers:
        _observers.remove(observer)
        if not _observers:
            _uninstall()


def observers() -> list[Observer]:
    """Those who are told, in the order they came."""
    return list(_observers)


def in_backward() -> bool:
    """Whether autograd is running: a forward that runs now is a recomputation."""
    return torch._C._current_graph_task_id() != -1


@contextmanager
def unobserved() -> Iterator[None]:
    """Nothing is watched inside."""
    installed = bool(_undo)
    if installed:
        _uninstall()
    try:
        yield
    finally:
        if installed and _observers:
            _install()


def is_compiled(module: nn.Module) -> bool:
    """Whether a module runs compiled code; without importing the compiler, which takes a second."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    wrapped = compiler is not None and isinstance(module, compiler.OptimizedModule)
    return wrapped or module._compiled_call_impl is not None


def _install() -> None:
    _undo.append(_replace(nn.Module, "__call__", _watched_call))
    _undo.append(_replace(torch.autograd, "backward", _watched_backward))
    taps.listen(_tapped)
    _undo.append(lambda: taps.listen(None))


def _uninstall() -> None:
    while _undo:
        _undo.pop()()


def _replace(owner: Any, name: str, watched: Callable[[Any], Any]) -> Undo:
    original = getattr(owner, name)
    setattr(owner, name, watched(original))
    return lambda: setattr(owner, name, original)


def _watched_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        told = [observer for observer in _observers if observer.owns(self)]
        for observer in told:
            observer.enter(self, args, kwargs)
        try:
            # Of compiled code only what goes in and comes out is seen, and it must not be compiled for being watched.
            with unobserved() if is_compiled(self) else nullcontext():
                output = original(self, *args, **kwargs)
        except BaseException as error:
            for observer in told:
                observer.fail(self, error)
            raise
        for observer in told:
            observer.leave(self, output)
        return output

    return call


def _watched_backward(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if in_backward():  # of a checkpointed part, inside the one that is watched already
            original(tensors, *args, **kwargs)
            return
        tensors = (tensors,) if isinstance(tensors, torch.Tensor | GradientEdge) else tuple(tensors)
        roots = tuple(root for root in tensors if isinstance(root, torch.Tensor))
        told, whole = list(_observers), False
        for observer in told:
            observer.begin_backward(roots)
        try:
            original(tensors, *args, **kwargs)
            whole = True
        finally:
            for observer in told:
                observer.end_backward(whole=whole)

    return backward


def _tapped(name: str, tensor: Any) -> None:
    for observer in reversed(_observers):
        if observer.tapped(name, tensor):
            return
