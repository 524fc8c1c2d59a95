"""MLX: modules, parameters, gradients and an optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten

from ...core.dtypes import numpy_dtype
from ...core.traces import Array
from ..module_calls import Framework, Name

STATES = {"m": "exp_avg", "v": "exp_avg_sq"}  # MLX's words for an optimizer's state, and torch's


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    return dict(reversed(model.named_modules()))


def _named(tree: Any) -> dict[Name, Any]:
    split = ((path.rpartition("."), array) for path, array in tree_flatten(tree))
    return {(module, name): array for (module, _, name), array in split}


def _to_numpy(array: mx.array) -> Array:
    if array.dtype == mx.bfloat16:  # numpy has none of its own, so it goes by its bits
        return np.array(array.view(mx.uint16)).view(numpy_dtype("bf16"))
    return np.array(array)


def _loss_gradient(loss_fn: Callable[..., Any], outputs: Any, target: Any) -> tuple[Any, Any]:
    loss, gradient = mx.value_and_grad(loss_fn)(outputs, target)
    return loss, gradient


def _gradients(model: nn.Module, loss_fn: Callable[..., Any], inputs: tuple[Any, ...], target: Any) -> dict[Name, Any]:
    _, gradients = nn.value_and_grad(model, lambda: loss_fn(model(*inputs), target))()
    return _named(gradients)


def _update(model: nn.Module, optimizer: Any, gradients: Mapping[Name, Any]) -> dict[Name, Any]:
    named = [(".".join(filter(None, name)), array) for name, array in gradients.items()]
    optimizer.update(model, tree_unflatten(named))
    mx.eval(model.parameters(), optimizer.state)
    found = {}
    for path, array in tree_flatten(optimizer.state):
        module, _, last = path.rpartition(".")
        owner, _, port = module.rpartition(".")
        if port:
            found[owner, f"{port}.{STATES.get(last, last)}"] = array
    return found


FRAMEWORK = Framework(
    producer=f"mlx {version('mlx')}",
    modules=_modules,
    parameters=lambda model: _named(model.parameters()),
    is_array=lambda value: isinstance(value, mx.array),
    to_numpy=_to_numpy,
    loss_gradient=_loss_gradient,
    gradients=_gradients,
    update=_update,
    environment={"mlx": version("mlx"), "device": str(mx.default_device())},
)
