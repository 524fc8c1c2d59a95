"""Marks in a traced function: identities that say which site their operand is.

A mark is an equation of the jaxpr, also inside `jit`, `vmap`, `checkpoint` and `scan`. Under `grad` it leaves a second
mark where the gradient of its operand arrives. XLA compiles none of them to anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ...core import taps
from ...core.strict_json import encode
from ..module_calls import Name, settings

SCOPE = "firstdrift"  # begins the name scopes that tell equations their modules


class Mark(NamedTuple):
    """What an operand is. `axes` are those that `vmap` added, the outermost first."""

    phase: str  # tangent: of forward-mode differentiation, which no site holds
    name: str
    port: str
    call: int = 0
    op: str | None = None
    attrs: str = "{}"
    gradient: str = ""  # the phase that the gradient arriving here is recorded in; none if empty
    axes: tuple[int, ...] = ()


mark_p = Primitive("firstdrift_mark")
mark_p.def_impl(lambda x, *, mark: x)
mark_p.def_abstract_eval(lambda x, *, mark: x)
mlir.register_lowering(mark_p, lambda context, x, *, mark: [x])


def _jvp(primals: Any, tangents: Any, *, mark: Mark) -> tuple[Any, Any]:
    (x,), (tangent,) = primals, tangents
    made = mark_p.bind(x, mark=mark)
    if not mark.gradient or type(tangent) is ad.Zero:
        return made, tangent
    return made, mark_p.bind(tangent, mark=mark._replace(phase="tangent"))


def _transpose(cotangent: Any, x: Any, *, mark: Mark) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [cotangent]
    return [mark_p.bind(cotangent, mark=mark._replace(phase=mark.gradient, gradient=""))]


def _batch(args: Any, dims: Any, *, mark: Mark) -> tuple[Any, int]:
    (x,), (dim,) = args, dims
    moved = tuple(axis if axis < dim else axis + 1 for axis in mark.axes)
    return mark_p.bind(x, mark=mark._replace(axes=(dim, *moved))), dim


ad.primitive_jvps[mark_p] = _jvp
ad.primitive_transposes[mark_p] = _transpose
batching.primitive_batchers[mark_p] = _batch


def is_array(value: Any) -> bool:
    """Whether a value is an array of numbers; a random key is none."""
    return isinstance(value, jax.Array | np.ndarray) and not is_key(value)


def is_key(value: Any) -> bool:
    """Whether a value is a random key of its own dtype."""
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def each_array(value: Any, port: str, change: Callable[[str, Any], Any]) -> Any:
    """A value with its arrays replaced, each under its port: inside tuples, lists and mappings."""
    if is_array(value):
        return change(port, value)
    if isinstance(value, tuple | list):
        parts = [each_array(part, f"{port}.{at}", change) for at, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is dict:
        return {key: each_array(part, f"{port}.{key}", change) for key, part in value.items()}
    return value


class Marking:
    """One trace of a model: which module runs, and marks for what it is given, returns and taps."""

    def __init__(self, names_of: Callable[[Any], Mapping[str, Any]]) -> None:
        self.paths: list[str] = []  # of the modules that name scopes tell by number
        self._names_of = names_of
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # modules, so that no other gets the address of one
        self._calls: Counter[Name] = Counter()
        self._open: list[tuple[int, str]] = []

    def learn(self, model: Any) -> None:
        """Know the modules of a model by their addresses: transformations and merges make copies."""
        for path, module in self._names_of(model).items():
            self._names[id(module)] = path
            self._kept.append(module)

    def name(self, module: Any, model_class: type) -> str | None:
        """The path of a module; a copy of the whole model is learnt when it is called."""
        if id(module) not in self._names and type(module) is model_class:
            self.learn(module)
        return self._names.get(id(module))

    def call(
        self, call: Callable[..., Any], key: int, path: str, op: str, attrs: str, args: Any, kwargs: Any,
        given: tuple[Any, ...] = (),
    ) -> Any:  # fmt: skip
        """Call a module with marks around it; `given` are arguments in front that are the module's own."""
        if self._open and self._open[-1] == (key, path):  # a class's super().__call__
            return call(*given, *args, **kwargs)
        number = self._calls[path, ""]
        self._calls[path, ""] += 1
        if path not in self.paths:
            self.paths.append(path)

        def entered(port: str, array: Any) -> Any:
            return mark_p.bind(array, mark=Mark("fwd", path, port, number))

        def left(port: str, array: Any) -> Any:
            return mark_p.bind(array, mark=Mark("fwd", path, port, number, op, attrs, "agrad"))

        args = [each_array(value, f"in.{at}", entered) for at, value in enumerate(args)]
        kwargs = {name: each_array(value, f"in.{name}", entered) for name, value in kwargs.items()}
        self._open.append((key, path))
        try:
            with jax.named_scope(f"{SCOPE}{self.paths.index(path)}"):
                result = call(*given, *args, **kwargs)
        finally:
            self._open.pop()
        return each_array(result, "out", left)

    def call_module(self, model_class: type, call: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        """Call a module that is a Python object; one that is not the model's is only called."""
        path = self.name(module, model_class)
        if path is None:
            return call(module, *args, **kwargs)
        op = type(module).__name__
        return self.call(call, id(module), path, op, encode(settings(module)), args, kwargs, (module,))

    @contextmanager
    def tapping(self) -> Iterator[None]:
        """Hear `fd.tap`: what a tap returns is marked."""
        before = taps.listen(self._tap)
        try:
            yield
        finally:
            taps.listen(before)

    def _tap(self, name: str, value: Any) -> Any:
        path = ".".join(filter(None, (self._open[-1][1] if self._open else "", name)))

        def tapped(port: str, array: Any) -> Any:
            number = self._calls[path, port]
            self._calls[path, port] += 1
            return mark_p.bind(array, mark=Mark("fwd", path, port, number, "tap", gradient="agrad"))

        return each_array(value, "out", tapped)
