"""What a model is made of: modules and parameters by name, what is tied, and what each module says of itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

from ...core.strict_json import Json

_MOST_ITEMS = 16  # of a tuple that is still a hyper-parameter
_LONGEST = 256  # characters of a text, bits of a number
COMPILED = "_orig_mod"  # the child of a module made by torch.compile, which is no part of any name


class Parameter(NamedTuple):
    """A parameter or buffer: its owner's path, its own name, further names, and the tensor."""

    module: str
    port: str
    aliases: tuple[str, ...]
    tensor: torch.Tensor
    is_buffer: bool


def modules_of(model: nn.Module) -> dict[nn.Module, str]:
    """Every module with its path; compiling a module does not change its path."""
    return {module: plain_name(name) for name, module in model.named_modules()}


def plain_name(name: str) -> str:
    """A path without the wrappers of torch.compile."""
    if COMPILED not in name:
        return name
    return ".".join(part for part in name.split(".") if part != COMPILED)


def is_scripted(module: nn.Module) -> bool:
    """Whether a module runs in TorchScript's interpreter; such modules have little of what others have."""
    return isinstance(module, torch.jit.ScriptModule)


def classes_of(module: nn.Module) -> list[str]:
    """The class of a module and those it derives from, up to nn.Module; of a scripted one, first what it was."""
    kinds = type(module).__mro__
    written = [str(module.original_name)] if is_scripted(module) else []
    return [*written, *(kind.__name__ for kind in kinds[: kinds.index(nn.Module)])] or ["Module"]


def parameters_of(model: nn.Module) -> list[Parameter]:
    """Every parameter and buffer once, under its first name; the other names of a tied one are its aliases."""
    found: dict[int, tuple[torch.Tensor, list[str], bool]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), (parameter, [], False))[1].append(plain_name(name))
    for name, buffer in model.named_buffers(remove_duplicate=False):
        found.setdefault(id(buffer), (buffer, [], True))[1].append(plain_name(name))
    return [
        Parameter(*_split(names[0]), tuple(dict.fromkeys(names[1:])), tensor, is_buffer)
        for tensor, names, is_buffer in found.values()
    ]


def attrs_of(module: nn.Module) -> dict[str, Json]:
    """The hyper-parameters of a module: whatever plain numbers, words and small tuples it carries."""
    carried = _attributes_in_script(module) if is_scripted(module) else vars(module)
    return {name: said for name, item in carried.items() if name[0] != "_" and (said := plain_value(item)) is not None}


def _attributes_in_script(module: nn.Module) -> dict[str, Any]:
    """What a scripted module carries; a frozen one has nothing left that says it."""
    kind = getattr(module, "_concrete_type", None)
    if kind is None:
        return {}
    return {**kind.get_constants(), **{name: getattr(module, name, None) for name in kind.get_attributes()}}


def plain_value(item: Any) -> Json:
    """A hyper-parameter as JSON; None for anything that is none."""
    if isinstance(item, int | str) and (len(item) if isinstance(item, str) else item.bit_length()) > _LONGEST:
        return None  # a text or number of its own, no setting
    if isinstance(item, bool | int | float | str):
        return item
    if isinstance(item, tuple | list | torch.Size) and 0 < len(item) <= _MOST_ITEMS:
        said = [plain_value(one) for one in item]
        return None if any(one is None for one in said) else said
    return None


def outermost(names: Iterable[str]) -> list[str]:
    """Of some paths, given from the outside in, those that lie in no other one."""
    found: dict[str, None] = {}
    for name in names:
        if not any(name.startswith(f"{one}." if one else "") for one in found):
            found[name] = None
    return list(found)


def layer_of(name: str) -> int | None:
    """The number of the layer a path lies in: its first numeric part."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def behind(module: nn.Module) -> nn.Module:
    """The module that a wrapper made by torch.compile stands for."""
    inner = dict(module._modules.items()).get(COMPILED)  # those of a scripted module are no dict
    return module if inner is None else inner


def named_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a module was called with, by the name of each argument."""
    names, rest = _parameters_of_forward(module)
    for number, item in enumerate(args):
        yield names[number] if number < len(names) else f"{rest}.{number - len(names)}", item
    yield from kwargs.items()


def numbered_arguments(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The same by position, so that it does not matter how an argument was passed, or what it is called."""
    names, _ = _parameters_of_forward(module)
    yield from ((str(number), item) for number, item in enumerate(args))
    for name, item in kwargs.items():
        yield str(names.index(name)) if name in names else name, item


def _parameters_of_forward(module: nn.Module) -> tuple[list[str], str]:
    """The names of a forward's arguments; a wrapper that passes everything on takes those of what it wraps."""
    if is_scripted(module):
        schema = getattr(getattr(module, "forward", None), "schema", None)
        return [argument.name for argument in schema.arguments[1:]] if schema is not None else [], "args"
    names, rest = _signature(type(module).forward)
    children = list(module.children())
    return _parameters_of_forward(children[0]) if not names and len(children) == 1 else (names, rest)


@lru_cache(maxsize=1024)
def _signature(forward: Any) -> tuple[list[str], str]:
    try:
        parameters = list(inspect.signature(forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return [], "args"
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    rest = next(
        (parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.VAR_POSITIONAL), "args"
    )
    return [parameter.name for parameter in parameters if parameter.kind in kinds], rest


def _split(name: str) -> tuple[str, str]:
    module, _, port = name.rpartition(".")
    return module, port
