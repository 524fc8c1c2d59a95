"""What an entry of the library is: an operation's names, its settings, and what it computes as a function of torch.

An entry is a formula. Its calls, and those of its derivative, are found out from it (`call_templates`), so that nothing
is written twice. Nothing here is believed because it stands here: a call counts where it reproduces what was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...core.strict_json import Json
from ..interpreter import NotReplayableError
from ..torch_values import TORCH_DTYPES

Tensors = Sequence[Tensor]


class Weights:
    """Weights by port: `all` of them, several where several modules' are read. One that is asked for is all of its
    port behind each other."""

    def __init__(self, ports: Sequence[str], tensors: Sequence[Tensor]) -> None:
        self.all: dict[str, list[Tensor]] = {}
        for port, tensor in zip(ports, tensors, strict=True):
            self.all.setdefault(PORTS.get(port, port), []).append(tensor)

    def __contains__(self, port: str) -> bool:
        return port in self.all

    def __getitem__(self, port: str) -> Tensor:
        found = self.get(port)
        if found is None:
            raise NotReplayableError(f"no {port} of it was recorded")
        return found

    def get(self, port: str) -> Tensor | None:
        """A weight; None where there is none."""
        found = self.all.get(port)
        return None if not found else found[0] if len(found) == 1 else torch.cat(found)


Formula = Callable[[Tensors, Weights, Any], Tensor]


class _Required:
    """The default of a setting that is never guessed."""


REQUIRED = _Required()
BY_SHAPE = None  # the default of a setting that the shapes tell, or that is only there where it was recorded


_NEUTRAL = (REQUIRED, BY_SHAPE, 0.0, 1.0, "zeros", "NOTSET", "default")  # defaults that nobody chose


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting by its names, the first of which is ours; `default` is the documented one of the operation."""

    names: tuple[str, ...]
    kind: str  # number, whole, sizes, flag, word, numbers, padding
    default: Any

    @property
    def is_choice(self) -> bool:
        """Whether engines differ in what they take where nothing is said: an eps, a slope, no factor of 1."""
        return self.kind in ("number", "numbers", "word") and self.default not in _NEUTRAL

    def read(self, attrs: Mapping[str, Json]) -> Any:
        """Its value; what cannot be meant is refused."""
        name = next((one for one in self.names if attrs.get(one) is not None), None)
        if name is None:
            if self.default is REQUIRED:
                raise NotReplayableError(f"{self.names[0]} was not recorded")
            return self.default
        read, called = _KINDS[self.kind]
        value = read(attrs[name])
        if value is None:
            raise NotReplayableError(f"{name} is {attrs[name]!r}, which is no {called}")
        return value


@dataclass(frozen=True, slots=True)
class Operation:
    """An entry of the table: its names, its settings, its formula.

    `inputs` is how many tensors it reads: 0 for any number, -1 for two or more.
    """

    names: tuple[str, ...]
    settings: tuple[Setting, ...]
    inputs: int
    formula: Formula
    outputs: int = 1

    def settled(self, attrs: Mapping[str, Json]) -> tuple[dict[str, Any], list[str]]:
        """Its settings, and the names of those that were not recorded and have a default that somebody chose."""
        found = {setting.names[0]: setting.read(attrs) for setting in self.settings}
        missing = [
            setting.names[0] for setting in self.settings
            if setting.is_choice and not any(attrs.get(name) is not None for name in setting.names)
        ]  # fmt: skip
        return found, missing

    def function(
        self, settings: Mapping[str, Any], inputs: int, ports: Sequence[str], shape: tuple[int, ...], dtype: str,
        at: int | str,
    ) -> Callable[[Tensors], Tensor]:  # fmt: skip
        """The formula of inputs and weights in a row, brought to the shape and dtype that were recorded."""

        def compute(given: Tensors) -> Tensor:
            given = _alike(given)
            said = SimpleNamespace(**settings, shape=shape, at=at, kernel="kernel" in ports)
            made = self.formula(given[:inputs], Weights(ports, given[inputs:]), said)
            if prod(made.shape) != prod(shape):
                raise NotReplayableError(f"it would give {list(made.shape)}, and {list(shape)} was recorded")
            made = made if tuple(made.shape) == shape else made.reshape(shape)
            return made if made.dtype == TORCH_DTYPES[dtype] else made.to(TORCH_DTYPES[dtype])

        return compute


# What other engines call the weights of a module.
PORTS = {
    "W": "weight", "kernel": "weight", "gamma": "weight", "scale": "weight", "embedding": "weight", "B": "bias",
    "beta": "bias", "mean": "running_mean", "var": "running_var", "moving_mean": "running_mean",
    "moving_variance": "running_var", "input_mean": "running_mean", "input_var": "running_var",
}  # fmt: skip


OPERATIONS: list[Operation] = []


def entry(*names: str, inputs: int = 1, outputs: int = 1, **settings: Any) -> Callable[[Formula], Formula]:
    """Enter a formula into the table; a setting is given as its kind, default and further names."""

    def add(formula: Formula) -> Formula:
        read = tuple(Setting((name, *more), kind, default) for name, (kind, default, *more) in settings.items())
        OPERATIONS.append(Operation(names, read, inputs, formula, outputs))
        return formula

    return add


def enter(function: Callable[..., Tensor], *names: str, inputs: int = 1, **settings: Any) -> None:
    """Enter a function of torch that takes tensors, and settings by the names that they have here."""
    entry(*names, inputs=inputs, **settings)(
        lambda x, w, s: function(*x[:inputs], **{name: getattr(s, name) for name in settings})
    )


def _number(said: Json) -> float | None:
    return float(said) if type(said) in (int, float) and isfinite(said) else None


def _whole(said: Json) -> int | None:
    return said if type(said) is int and abs(said) < 1 << 40 else None


def _sizes(said: Json) -> tuple[int, ...] | None:
    items = said if isinstance(said, list | tuple) else [said]
    found = tuple(item for item in items if type(item) is int and abs(item) < 1 << 40)
    return found if len(found) == len(items) <= 64 else None


def _numbers(said: Json) -> tuple[float, ...] | None:
    found = tuple(map(_number, said)) if isinstance(said, list | tuple) else (None,)
    return None if None in found else found  # type: ignore[return-value]


_KINDS: Mapping[str, tuple[Callable[[Json], Any], str]] = {  # what reads a kind of setting, and its name
    "number": (_number, "finite number"),
    "whole": (_whole, "whole number"),
    "sizes": (_sizes, "size or list of sizes"),
    "numbers": (_numbers, "list of numbers"),
    "flag": (lambda said: bool(said) if said in (0, 1, True, False) else None, "true or false"),
    "word": (lambda said: said if isinstance(said, str) else None, "word"),
    "padding": (lambda said: said if isinstance(said, str) else _sizes(said), "size, list of sizes or word"),
}


def _alike(given: Tensors) -> list[Tensor]:
    """Floats of several dtypes in the widest of them, as an engine has to bring them together, too."""
    kinds = {tensor.dtype for tensor in given if tensor.is_floating_point()}
    if len(kinds) < 2:
        return list(given)
    widest = max(kinds, key=lambda kind: torch.finfo(kind).bits)
    return [tensor.to(widest) if tensor.is_floating_point() else tensor for tensor in given]


def wide(dtype: torch.dtype) -> torch.dtype:
    """What norms and softmax are computed in: float32 where a model's dtype is narrower."""
    return dtype if torch.finfo(dtype).bits >= 32 else torch.float32


def each(sizes: tuple[int, ...], axes: int) -> list[int]:
    return list(sizes) * axes if len(sizes) == 1 else list(sizes)


def both_ends(padding: list[int], axes: int) -> list[int]:
    """Padding of which ONNX gives both ends, where these are equal."""
    if len(padding) == 2 * axes:
        if padding[:axes] != padding[axes:]:
            raise NotReplayableError(f"padding is {padding}, another one behind than before")
        padding = padding[:axes]
    return padding


def plus(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


def capped(x: Tensor, cap: float | None) -> Tensor:
    return x if not cap else torch.tanh(x / cap) * cap
