"""A model once more, whatever it holds: what has no copy is shared, and what a graph made is cut from it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..errors import CaptureError


def copied_model(model: nn.Module) -> nn.Module:
    """A deep copy. A lock, a static method or a generator that the model holds is in both."""
    try:
        return copy.deepcopy(model)
    except Exception:  # what a model holds can refuse in any way
        try:
            return copy.deepcopy(model, _stand_ins(model))
        except Exception as error:
            raise CaptureError(
                f"the {type(model).__qualname__} cannot be copied ({type(error).__name__}: {error}); both sides run as "
                "copies, so make copy.deepcopy(model) work"
            ) from error


def _stand_ins(model: nn.Module) -> dict[int, Any]:
    """What takes the place, in a copy, of everything that refuses to be copied, by its identity."""
    held = (leaf for module in model.modules() for value in vars(module).values() for leaf in _leaves(value))
    return {id(leaf): _stand_in(leaf) for leaf in held if _refuses(leaf)}


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        yield value
        return
    for item in value:
        yield from _leaves(item)


def _refuses(leaf: Any) -> bool:
    if isinstance(leaf, nn.Module):  # looked into by itself
        return False
    if isinstance(leaf, torch.Tensor):
        return not leaf.is_leaf
    try:
        copy.deepcopy(leaf)
    except Exception:
        return True
    return False


def _stand_in(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
