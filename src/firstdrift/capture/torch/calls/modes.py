"""Two modes at the bottom of torch's stacks: what the user calls, and the ATen operations that these calls consist of.

They come and go while the user's own modes are open, so that they cannot be entered and left like those: a mode that is
left takes away whatever lies on top of its stack. Ours lie below all others, and are taken out from wherever they are.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

import torch
from torch._C import (
    _get_dispatch_stack_at,
    _get_function_stack_at,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _pop_torch_dispatch_stack,
    _pop_torch_function_stack,
    _push_on_torch_dispatch_stack,
    _push_on_torch_function_stack,
)  # fmt: skip
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from .composites import open_up

_COMPILER = "torch._dynamo.eval_frame"
_ENGINE = "_engine_run_backward"
_CALLER = "compile_wrapper"  # in which compiled functions are called; what else calls these two is the compiler itself
_BEFORE, _AFTER = "_is_skip_guard_eval_unsafe_stance", "_maybe_set_eval_frame"


_watching: list[Modes] = []


class Watcher(Protocol):
    """Who writes calls down. Either method makes the call and returns what it returned."""

    differentiable: bool  # whether the backward pass that runs is itself to be differentiated

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def operation(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def unseen(self, given: Any, back: Callable[[], None]) -> Callable[[], None]: ...


class _Operations(TorchDispatchMode):
    supports_higher_order_operators = True  # torch.cond, flex_attention and their like pass as single operations

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return (
            False  # which would import the compiler, to keep it out of what we call; our modes are away where it runs
        )

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._watcher.operation(func, types, args, kwargs or {})


class _Functions(TorchFunctionMode):
    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._watcher.function(func, args, kwargs or {})


class Modes:
    """The two modes of one trace, on the stacks of the thread that put them there."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._functions, self._operations = _Functions(watcher), _Operations(watcher)
        self._thread: int | None = None
        self._undo: list[Callable[[], None]] = []

    @property
    def watching(self) -> bool:
        """Whether calls of this thread are seen."""
        return self._thread == threading.get_ident()

    def put(self) -> None:
        """Watch the calls of this thread from now on."""
        if self._thread is None:
            self._thread = threading.get_ident()
            _watching.append(self)
            self._put_back(functions=True, operations=True)
            self._step_aside_for_the_compiler()
            self._watch_inside_backward()

    def take(self) -> None:
        """Watch no longer; safe to call again. Stacks belong to threads: in another one, our modes stay, mute."""
        if self._thread in (None, threading.get_ident()):
            self._take(functions=True, operations=True)
        self._thread = None
        if self in _watching:
            _watching.remove(self)
        while self._undo:
            self._undo.pop()()

    def aside(self, *, operations: bool = True) -> Callable[[], None]:
        """Take the modes away for a while, or the one of functions alone; what is returned puts them back."""
        if not self.watching:
            return lambda: None
        functions = self._functions in _function_stack()
        operations = operations and self._operations in _own_dispatch_stack()
        self._take(functions=functions, operations=operations)
        return lambda: self._put_back(functions=functions, operations=operations) if self.watching else None

    def open(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call of an operation so that those it consists of are seen; for use inside such a call."""
        with self._operations:
            return open_up(func, args, kwargs)

    def unseen(self, given: Any) -> Callable[[], None]:
        """The same, and say that what runs meanwhile is not seen."""
        return self._watcher.unseen(given, self.aside())

    def _put(self, *, functions: bool = False, operations: bool = False) -> None:
        if functions:
            above = [_pop_torch_function_stack() for _ in range(_len_torch_function_stack())]
            if above and isinstance(above[-1], DeviceContext):  # which torch wants to find at the very bottom
                _push_on_torch_function_stack(above.pop())
            for mode in (self._functions, *reversed(above)):
                _push_on_torch_function_stack(mode)
        if operations:
            users = [_pop_torch_dispatch_stack(None) for _ in _own_dispatch_stack()]
            for mode in (self._operations, *reversed(users)):
                _push_on_torch_dispatch_stack(mode)

    def _take(self, *, functions: bool = False, operations: bool = False) -> None:
        if functions and self._functions in _function_stack():
            above = [_pop_torch_function_stack() for _ in range(_len_torch_function_stack())]
            for mode in reversed(above):
                if mode is not self._functions:
                    _push_on_torch_function_stack(mode)
        if operations and self._operations in _own_dispatch_stack():
            users = [_pop_torch_dispatch_stack(None) for _ in _own_dispatch_stack()]
            for mode in reversed(users):
                if mode is not self._operations:
                    _push_on_torch_dispatch_stack(mode)

    def _step_aside_for_the_compiler(self) -> None:
        """Compiled functions would be compiled anew with our modes inside, so that these are away while they run."""
        compiler: Any = sys.modules.get(_COMPILER)
        before, after = getattr(compiler, _BEFORE, None), getattr(compiler, _AFTER, None)
        if before is None or after is None:
            return
        back: list[Callable[[], None]] = []

        def entered() -> Any:
            caller = sys._getframe(1)
            if self.watching and caller.f_code.co_name == _CALLER:
                back.append(self.unseen(caller.f_locals.get("args", ())))
            return before()

        def left(callback: Any) -> Any:
            if sys._getframe(1).f_code.co_name == _CALLER:
                while back and not callable(callback):
                    back.pop()()
            return after(callback)

        setattr(compiler, _BEFORE, entered)
        setattr(compiler, _AFTER, left)

        self._undo += [lambda: setattr(compiler, _BEFORE, before), lambda: setattr(compiler, _AFTER, after)]

    def _watch_inside_backward(self) -> None:
        """See what hooks, recomputations and custom functions call in a backward pass: our mode was told of `backward`,
        and inside a function that it was told of it sees nothing."""
        original = getattr(torch.autograd, _ENGINE)

        @wraps(original)
        def run(roots: Any, gradients: Any, retain_graph: Any, create_graph: Any, *args: Any, **kwargs: Any) -> Any:
            given = (roots, gradients, retain_graph, create_graph, *args)
            if not self.watching:
                return original(*given, **kwargs)
            inside = self._functions not in _function_stack()
            before, self._watcher.differentiable = self._watcher.differentiable, bool(create_graph)
            if inside:
                self._put(functions=True)
            try:
                return original(*given, **kwargs)
            finally:
                self._watcher.differentiable = before
                if inside:
                    self._take(functions=True)

        setattr(torch.autograd, _ENGINE, run)
        self._undo.append(lambda: setattr(torch.autograd, _ENGINE, original))

    def _put_back(self, *, functions: bool, operations: bool) -> None:
        self._put(
            functions=functions and self._functions not in _function_stack(),
            operations=operations and self._operations not in _own_dispatch_stack(),
        )


def step_aside(given: Any) -> Callable[[], None]:
    """Take all modes of ours away from this thread for code in which they must not be; what is returned ends that."""
    back = [modes.unseen(given) for modes in list(_watching) if modes.watching]

    def end() -> None:
        for one in reversed(back):
            one()

    return end


def functions_aside() -> Callable[[], None]:
    """Take our modes of functions away from this thread; what is returned puts them back."""
    back = [modes.aside(operations=False) for modes in list(_watching)]

    def end() -> None:
        for one in reversed(back):
            one()

    return end


def _function_stack() -> list[Any]:
    return [_get_function_stack_at(at) for at in range(_len_torch_function_stack())]


def _own_dispatch_stack() -> list[Any]:
    """The modes that users made; those of torch's own machinery are kept elsewhere."""
    every = [_get_dispatch_stack_at(at) for at in range(_len_torch_dispatch_stack())]
    return [mode for mode in every if getattr(mode, "_mode_key", None) is None]
