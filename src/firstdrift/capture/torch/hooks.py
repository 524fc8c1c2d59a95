"""The one place that touches torch's global state: calls of modules and into TorchScript, backward passes, taps.

Calls are watched at `nn.Module.__call__`, not by hooks. Hooks on modules switch off fast paths
(`nn.TransformerEncoderLayer` looks for them), are copied by `copy.deepcopy`, are seen by `torch.compile`, and do not
see what hooks behind them change. All is there while a trace is open, and gone while compiled code runs, so that
what is compiled does not depend on being watched; unless another thread is watched then, whose calls count more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, Protocol

import torch
from torch import nn
from torch._guards import TracingContext
from torch.autograd.graph import GradientEdge

from ...core import taps
from .calls.modes import functions_aside
from .calls.ops import unseen
from .turns import in_backward as in_backward
from .turns import this_thread

Undo = Callable[[], object]


class Observer(Protocol):
    """Who is told what happens to a model."""

    def owns(self, module: nn.Module) -> bool: ...
    def follows(self, module: nn.Module) -> bool: ...
    def is_elsewhere(self) -> bool: ...
    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None: ...
    def leave(self, module: nn.Module, output: Any) -> None: ...
    def fail(self, module: nn.Module, error: BaseException) -> None: ...
    def tapped(self, name: str, tensor: Any) -> bool: ...
    def begin_backward(self, roots: tuple[torch.Tensor, ...]) -> bool: ...
    def end_backward(self, *, whole: bool) -> None: ...


class _Quiet(threading.local):
    """Whether a thread is not watched."""

    on = False


_observers: tuple[Observer, ...] = ()  # replaced and never changed, because threads go through it
_undo: list[Undo] = []  # how to take away what is installed
_lock = threading.Lock()  # held while either of them changes
_quiet = _Quiet()
# Modules that look for a mode of functions, and take a slower way where there is one; of the model or not.
_LOOK_FOR_MODES = (nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.MultiheadAttention)


def add(observer: Observer) -> None:
    """Tell an observer from now on."""
    global _observers
    with _lock:
        _observers = (*_observers, observer)
        _install()


def remove(observer: Observer) -> None:
    """Tell an observer no longer; the last one takes everything away with it."""
    global _observers
    with _lock:
        _observers = tuple(one for one in _observers if one is not observer)
        if not _observers:
            _uninstall()


def observers() -> list[Observer]:
    """Those who are told, in the order they came."""
    return list(_observers)


@contextmanager
def unobserved() -> Iterator[None]:
    """Nothing is watched inside, in this thread."""
    before, _quiet.on = _quiet.on, True
    try:
        yield
    finally:
        _quiet.on = before


@contextmanager
def _uninstalled() -> Iterator[None]:
    """Nothing of ours is there inside, unless another thread is being watched meanwhile."""
    with _lock:
        installed = bool(_undo) and not any(observer.is_elsewhere() for observer in _observers)
        if installed:
            _uninstall()
    try:
        with unobserved():
            yield
    finally:
        with _lock:
            if installed and _observers:
                _install()


def is_compiled(module: nn.Module) -> bool:
    """Whether a module runs compiled code; without importing the compiler, which takes a second."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    wrapped = compiler is not None and isinstance(module, compiler.OptimizedModule)
    return wrapped or module._compiled_call_impl is not None


def _install() -> None:
    if _undo:
        return
    _undo.append(_replace(nn.Module, "__call__", _watched_call))
    _undo.append(_replace(torch.autograd, "backward", _watched_backward))
    for way_in in (torch._C.ScriptMethod, torch._C.ScriptFunction):
        _undo.append(_replace(way_in, "__call__", unseen))
    taps.listen(_tapped)
    _undo.append(lambda: taps.listen(None))


def _uninstall() -> None:
    while _undo:
        _undo.pop()()


def _replace(owner: Any, name: str, watched: Callable[[Any], Any]) -> Undo:
    original = getattr(owner, name)
    setattr(owner, name, watched(original))
    return lambda: setattr(owner, name, original)


def _is_traced_by_torch() -> bool:
    """Whether TorchScript or a compiler traces what runs in this thread, and would take our work for the model's."""
    if torch._C._is_tracing():
        return True
    return torch.compiler.is_compiling() and TracingContext.try_get() is not None  # the former is said to all threads


def _watched_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() or _is_traced_by_torch():
            return original(self, *args, **kwargs)
        this_thread().is_users |= not in_backward()
        told = () if _quiet.on else [observer for observer in _observers if observer.follows(self)]
        for observer in told:
            observer.enter(self, args, kwargs)
        back = functions_aside() if isinstance(self, _LOOK_FOR_MODES) and not self.training else None
        try:
            # Of compiled code only what goes in and comes out is seen, and it must not be compiled for being watched.
            with _uninstalled() if is_compiled(self) else nullcontext():
                output = original(self, *args, **kwargs)
        except BaseException as error:
            for observer in told:
                observer.fail(self, error)
            raise
        finally:
            if back is not None:
                back()
        for observer in told:
            observer.leave(self, output)
        return output

    return call


def _watched_backward(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if _quiet.on or in_backward():  # of a checkpointed part, inside the one that is watched already
            original(tensors, *args, **kwargs)
            return
        this_thread().is_users = True
        tensors = (tensors,) if isinstance(tensors, torch.Tensor | GradientEdge) else tuple(tensors)
        roots = tuple(root for root in tensors if isinstance(root, torch.Tensor))
        told, whole = [observer for observer in _observers if observer.begin_backward(roots)], False
        try:
            original(tensors, *args, **kwargs)
            whole = True
        finally:
            for observer in told:
                observer.end_backward(whole=whole)

    return backward


def _tapped(name: str, tensor: Any) -> None:
    if _quiet.on or _is_traced_by_torch():
        return
    for observer in reversed(_observers):
        if observer.tapped(name, tensor):
            return
