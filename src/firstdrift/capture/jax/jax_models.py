"""What is to be run: a flax or equinox model or a function as a pure function of its parameters and its inputs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.tree_util import tree_flatten_with_path, tree_leaves, tree_map, tree_map_with_path

from ...core.strict_json import encode
from ...errors import CaptureError
from ..module_calls import Name, classes_of, settings, watching
from .marks import Marking, is_array

VARIABLES = "params"  # flax linen's collection of what is trained


@dataclass(frozen=True)
class Model:
    """A pure function: `run(trained, held, args, kwargs)` gives the outputs and `held` as they are afterwards.

    `trained` and `held` are pytrees of arrays; gradients and an optimizer are those of `trained`.
    """

    title: str
    trained: Any
    held: Any
    run: Callable[[Any, Any, Any, Any], tuple[Any, Any]]
    arguments: list[str]  # the names of the inputs
    marks: Callable[[Marking], AbstractContextManager[None]]
    names_of: Callable[[Any], Mapping[str, Any]] = lambda model: {}
    classes: Mapping[str, list[str]] | None = None  # of the modules by name, where they are known before the run
    is_function: bool = False  # without a module around it
    skipped: tuple[int, int] = (0, 0)  # keys of `trained` and of `held` that are no modules: linen's collections


def model_of(model: Any, params: Any, inputs: Any) -> tuple[Model, Any]:
    """What to run, and what of `inputs` is left to feed it; a function reads its parameters as its first argument."""
    if _is_a(model, "flax.nnx", "Module"):
        _refuse(params, "an nnx.Module holds its parameters")
        return _nnx(model, lambda module, *args, **kwargs: module(*args, **kwargs), type(model).__call__), inputs
    if _is_a(model, "flax.linen", "Module"):
        if params is None:
            raise CaptureError("a linen module holds no parameters; give params=variables, as `init` returned them")
        return _linen(model, params), inputs
    if _is_a(model, "equinox", "Module") and not hasattr(model, "__wrapped__"):  # which filter_jit's functions have
        _refuse(params, "an equinox.Module holds its parameters")
        return _tree(model, lambda module, *args, **kwargs: module(*args, **kwargs), type(model).__call__), inputs
    if not callable(model):
        raise CaptureError(f"a {type(model).__qualname__} cannot be called; give a module or a function")
    if params is None and isinstance(inputs, tuple | list) and inputs and not is_array(inputs[0]):
        params, inputs = inputs[0], inputs[1:]
    function = model if params is not None else lambda _, *args, **kwargs: model(*args, **kwargs)
    if _is_a(params, "flax.nnx", "Module"):
        return _nnx(params, function, model, 1), inputs
    return _tree(params, function, model, 0 if params is None else 1), inputs


def names_in(tree: Any, skipped: int = 0) -> list[tuple[Name, Any]]:
    """The arrays of a pytree, in its order, each with its module's path and its own name there; the first keys, such as
    those of linen's collections, may be skipped."""
    found = []
    for path, leaf in tree_flatten_with_path(tree)[0]:
        *module, port = words(path)[skipped:] or ["weight"]
        found.append(((".".join(module), port), leaf))
    return found


def words(path: Any) -> list[str]:
    """The keys of a path; the box around an array, such as nnx.Param, is none."""
    said = [str(next(getattr(key, part) for part in ("key", "name", "idx") if hasattr(key, part))) for key in path]
    return said[:-1] if said[-1:] in (["value"], ["raw_value"]) and len(said) > 1 else said


def _nnx(model: Any, function: Callable[..., Any], signed: Any, skipped: int = 1) -> Model:
    from flax import nnx

    graph, trained, numbers, rest = nnx.split(model, nnx.Param, nnx.RngState, ...)

    def run(trained: Any, held: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        copies = [tree_map(lambda leaf: leaf, state) for state in (trained, numbers, held)]  # not the model's own boxes
        module = nnx.merge(graph, *copies)
        outputs = function(module, *args, **kwargs)
        return outputs, nnx.split(module, nnx.Param, nnx.RngState, ...)[3]

    def names_of(model: Any) -> dict[str, Any]:
        found = {".".join(map(str, path)): module for path, module in nnx.iter_modules(model)}
        return {path: found[path] for path in reversed(found)}

    return _of_objects(model, trained, rest, run, names_of, _arguments(signed, skipped))


def _tree(tree: Any, function: Callable[..., Any], signed: Any, skipped: int = 1) -> Model:
    """A model that is a pytree: its arrays of floats are trained, other arrays are held, the rest is as it is."""
    is_whole = _is_variables(tree)

    def is_trained(path: Any, leaf: Any) -> bool:
        return _is_float(leaf) and (not is_whole or words(path)[0] == VARIABLES)

    trained = tree_map_with_path(lambda path, leaf: leaf if is_trained(path, leaf) else None, tree)
    held = tree_map_with_path(lambda path, leaf: leaf if is_array(leaf) and not is_trained(path, leaf) else None, tree)
    fixed = tree_map(lambda leaf: None if is_array(leaf) else leaf, tree)

    def run(trained: Any, held: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        parts = (trained, held, fixed)
        whole = tree_map(lambda *leaves: next((leaf for leaf in leaves if leaf is not None), None), *parts,
                         is_leaf=lambda leaf: leaf is None)  # fmt: skip
        return function(whole, *args, **kwargs), held

    if not _holds_modules(tree):
        title = getattr(signed, "__name__", type(signed).__name__)
        marks = _intercepting if "flax.linen" in sys.modules else _nothing
        return Model(title, trained, held, run, _arguments(signed, skipped), marks, is_function=True,
                     skipped=(1, 1) if is_whole else (0, 0))  # fmt: skip
    return _of_objects(tree, trained, held, run, _equinox_names, _arguments(signed, skipped))


def _linen(module: Any, variables: Any) -> Model:
    is_whole = _is_variables(variables)
    trained = variables[VARIABLES] if is_whole else variables
    held = {key: variables[key] for key in variables if key != VARIABLES} if is_whole else {}

    def run(trained: Any, held: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        given = {VARIABLES: trained, **held}
        if not held:
            return module.apply(given, *args, **kwargs), held
        outputs, changed = module.apply(given, *args, mutable=list(held), **kwargs)
        return outputs, {**held, **changed}

    arguments = _arguments(type(module).__call__, 1)
    return Model(type(module).__name__, trained, held, run, arguments, _intercepting, skipped=(0, 1))


def _of_objects(model: Any, trained: Any, held: Any, run: Any, names_of: Any, arguments: list[str]) -> Model:
    """A model whose modules are Python objects."""
    modules = names_of(model)

    def marks(marking: Marking) -> AbstractContextManager[None]:
        return watching(modules.values(), partial(marking.call_module, type(model)))

    classes = {path: classes_of(module) for path, module in modules.items()}
    return Model(type(model).__name__, trained, held, run, arguments, marks, names_of, classes)


def _nothing(marking: Marking) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _intercepting(marking: Marking) -> Iterator[None]:
    """Marks around the calls of linen's modules."""
    import flax.linen as nn

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        module = context.module
        path = ".".join(module.path)
        attrs = encode({key: value for key, value in settings(module).items() if key != "name"})
        return marking.call(call, id(module), path, type(module).__name__, attrs, args, kwargs)

    with nn.intercept_methods(intercept):
        yield


def _equinox_names(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(tree: Any, at: tuple[str, ...]) -> None:
        if _is_a(tree, "equinox", "Module"):
            found[".".join(at)] = tree
        inner = tree_flatten_with_path(tree, is_leaf=lambda leaf: leaf is not tree and _is_a(leaf, "equinox", "Module"))
        for path, leaf in inner[0]:
            if leaf is not tree and _is_a(leaf, "equinox", "Module"):
                walk(leaf, (*at, *words(path)))

    walk(model, ())
    return found


def _holds_modules(tree: Any) -> bool:
    found = tree_leaves(tree, is_leaf=lambda leaf: _is_a(leaf, "equinox", "Module"))
    return any(_is_a(leaf, "equinox", "Module") for leaf in found)


def _is_variables(tree: Any) -> bool:
    return isinstance(tree, Mapping) and isinstance(tree.get(VARIABLES), Mapping)


def _is_float(leaf: Any) -> bool:
    return is_array(leaf) and jax.dtypes.issubdtype(leaf.dtype, jax.numpy.inexact)


def _is_a(value: Any, module: str, name: str) -> bool:
    there = sys.modules.get(module)
    return there is not None and isinstance(value, getattr(there, name))


def _arguments(function: Any, skipped: int) -> list[str]:
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = [one.name for one in found if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return plain[skipped:]


def _refuse(params: Any, why: str) -> None:
    if params is not None:
        raise CaptureError(f"{why}; leave params out")
