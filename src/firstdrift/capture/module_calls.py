"""Models that are trees of Python objects, each called by `__call__`: MLX, flax nnx, equinox.

Python looks `__call__` up on the class, so the classes of a model's modules get one that records, for the time of one
forward pass; what a module returns is passed on untouched.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from .._version import __version__
from ..core.sites import Site
from ..core.strict_json import Json
from ..core.traces import Array
from ..errors import CaptureError
from ..store.writer import Writer
from .recorder import Recorder
from .scope import Scope

Name = tuple[str, str]  # a module's path, a parameter's name in it


@dataclass(frozen=True)
class Framework:
    """What is the framework's own. Gradients and updates are those of one step with `loss_fn(outputs, target)`."""

    producer: str
    modules: Callable[[Any], Mapping[str, Any]]  # by path; the model itself is ""
    parameters: Callable[[Any], Mapping[Name, Any]]
    is_array: Callable[[Any], bool]
    to_numpy: Callable[[Any], Array]
    loss_gradient: Callable[
        [Callable[..., Any], Any, Any], tuple[Any, Any]
    ]  # loss_fn, outputs, target -> loss, gradient
    gradients: Callable[[Any, Callable[..., Any], tuple[Any, ...], Any], Mapping[Name, Any]]
    update: Callable[[Any, Any, Mapping[Name, Any]], Mapping[Name, Any]]  # model, optimizer, gradients -> its state
    environment: Mapping[str, Json] = field(default_factory=dict)


def record(
    framework: Framework,
    model: Any,
    path: str | os.PathLike[str],
    inputs: Any,
    *,
    loss_fn: Callable[..., Any] | None,
    target: Any,
    optimizer: Any,
    scope: Mapping[str, Any],
    overwrite: bool,
    checksum: bool,
    header: Mapping[str, Json],
) -> None:
    """Run a model once: the forward pass, and with `loss_fn` the gradients, and with `optimizer` its step."""
    given = inputs if isinstance(inputs, tuple | list) else (inputs,)
    if optimizer is not None and loss_fn is None:
        raise CaptureError("an optimizer steps by gradients of a loss; give loss_fn too")
    modules = framework.modules(model)
    chosen = Scope.of(**scope)
    classes = {name: classes_of(module) for name, module in modules.items()}
    chosen.check(classes)
    plain = _arrays(framework, model(*given))
    said = {
        "producer": f"firstdrift {__version__}, {framework.producer}",
        "model": type(model).__name__,
        "environment": dict(framework.environment),
    }
    with Writer(path, overwrite=overwrite, checksum=checksum, **{**said, **header}) as writer:
        names = {id(module): name for name, module in modules.items()}
        run = _Run(framework, Recorder(writer, chosen), names, classes)
        for at, array in enumerate(_arrays(framework, given)):
            run.put(Site(0, "input", "input", f"in.{at}"), array, ())
        run.put_parameters("weight", model)
        with watching(modules.values(), run.call):
            outputs = model(*given)
        found = _arrays(framework, outputs)
        if [framework.to_numpy(a).tobytes() for a in plain] != [framework.to_numpy(a).tobytes() for a in found]:
            writer.describe(notes=["two runs of the model differ: it draws random numbers or changes with each call"])
        if loss_fn is not None:
            _put_training(run, model, given, outputs, loss_fn, target, optimizer)


def _put_training(
    run: _Run, model: Any, given: Any, outputs: Any, loss_fn: Callable[..., Any], target: Any, optimizer: Any
) -> None:
    framework = run.framework
    logits = run.made.get(id(outputs))
    loss, gradient = framework.loss_gradient(loss_fn, outputs, target)
    run.put(Site(0, "loss", "loss", "out"), loss, (logits,) if logits else ())
    if framework.is_array(gradient):
        run.put(Site(0, "lossgrad", "loss", "out"), gradient, ())
    gradients = framework.gradients(model, loss_fn, tuple(given), target)
    for (name, port), array in reversed(list(gradients.items())):
        run.put(Site(0, "grad", name, port), array, None)
    if optimizer is not None:
        for (name, port), array in framework.update(model, optimizer, gradients).items():
            run.put(Site(0, "optim", name, port), array, None)
        run.put_parameters("weight_after", model)


@contextmanager
def watching(modules: Any, around: Callable[..., Any]) -> Iterator[None]:
    """Let `around(call, module, args, kwargs)` stand for `__call__` of the classes of these modules."""
    classes = list(dict.fromkeys(type(module) for module in modules if callable(module)))
    own = {kind: kind.__dict__.get("__call__") for kind in classes}
    for kind in classes:
        kind.__call__ = _watched(kind.__call__, around)
    try:
        yield
    finally:
        for kind, before in own.items():
            if before is None:
                del kind.__call__
            else:
                kind.__call__ = before


def _watched(call: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def watched(module: Any, *args: Any, **kwargs: Any) -> Any:
        return around(call, module, args, kwargs)

    return watched


class _Run:
    """One recorded run: which modules were called, and which site an array is of."""

    def __init__(
        self, framework: Framework, recorder: Recorder, names: Mapping[int, str], classes: Mapping[str, list[str]]
    ) -> None:
        self.framework, self._classes = framework, classes
        self.made: dict[int, Site] = {}
        self._recorder, self._names = recorder, names
        self._calls: Counter[str] = Counter()
        self._open: list[int] = []  # modules that have been entered and not left
        self._kept: list[Any] = []  # arrays, so that no other gets the address of one
        self._unread: list[list[Site]] = [[]]  # outputs of the modules inside each open one that no other has read

    def put(self, site: Site, array: Any, producers: tuple[Site, ...] | None, **details: Json) -> None:
        """Record an array, and remember where it is from."""
        self._kept.append(array)
        self.made[id(array)] = site
        if site.phase in self._recorder.scope.phases and self._recorder.scope.takes(
            site.name, self._classes.get(site.name, ())
        ):
            said = {} if producers is None else {"producers": list(producers)}
            self._recorder.put(site, self.framework.to_numpy(array), **said, **details)

    def put_parameters(self, phase: str, model: Any) -> None:
        """Record all parameters."""
        for (name, port), array in self.framework.parameters(model).items():
            self.put(Site(0, phase, name, port), array, None)

    def call(self, call: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        """Call a module, and record what it reads and returns."""
        name = self._names.get(id(module))
        if name is None or (self._open and self._open[-1] == id(module)):  # a stranger, or a class's super().__call__
            return call(module, *args, **kwargs)
        number = self._calls[name]
        self._calls[name] += 1
        read = self._enter(module, name, number, args, kwargs)
        self._open.append(id(module))
        self._unread.append([])
        try:
            result = call(module, *args, **kwargs)
        finally:
            self._open.pop()
            inside = self._unread.pop()
        self._leave(module, name, number, result, (*inside, *read))
        return result

    def _enter(self, module: Any, name: str, number: int, args: Any, kwargs: Any) -> list[Site]:
        sites = []
        named = [*((f"in.{at}", value) for at, value in enumerate(args)), *((f"in.{k}", v) for k, v in kwargs.items())]
        for port, array in _named_arrays(self.framework, named):
            made = self.made.get(id(array))
            if made in self._unread[-1]:
                self._unread[-1].remove(made)
            site = Site(0, "fwd", name, port, number)
            self.put(site, array, (made,) if made is not None else tuple(self._unread[-1]))
            self.made[id(array)] = made or site
            sites.append(site)
        return sites

    def _leave(self, module: Any, name: str, number: int, result: Any, producers: tuple[Site, ...]) -> None:
        for port, array in _named_arrays(self.framework, [("out", result)]):
            site = Site(0, "fwd", name, port, number)
            before = self.made.get(id(array))
            made_inside = (before,) if before is not None else producers
            self.put(site, array, made_inside, op=type(module).__name__, attrs=settings(module))
            self._unread[-1].append(site)


def _named_arrays(framework: Framework, named: Any) -> Iterator[tuple[str, Any]]:
    """Arrays inside tuples, lists and mappings, each with its port."""
    for port, value in named:
        if framework.is_array(value):
            yield port, value
        elif isinstance(value, tuple | list):
            yield from _named_arrays(framework, ((f"{port}.{at}", part) for at, part in enumerate(value)))
        elif isinstance(value, Mapping):
            yield from _named_arrays(framework, ((f"{port}.{key}", part) for key, part in value.items()))


def _arrays(framework: Framework, value: Any) -> list[Any]:
    return [array for _, array in _named_arrays(framework, [("", value)])]


def classes_of(module: Any) -> list[str]:
    return [kind.__name__ for kind in type(module).__mro__[:-1]]


def settings(module: Any) -> dict[str, Json]:
    """The plain numbers and words that a module keeps: eps, heads, theta."""
    held = vars(module) if hasattr(module, "__dict__") else {}
    held = {**(dict(module) if isinstance(module, Mapping) else {}), **held}
    return {
        key.lstrip("_"): value for key, value in held.items() if type(value) in (int, float, bool, str)
    }  # fmt: skip
