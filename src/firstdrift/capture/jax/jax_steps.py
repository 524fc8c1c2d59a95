"""A forward pass, or one with its loss and gradients, as a function of arrays that JAX can trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any

import jax
import numpy as np
from jax.tree_util import tree_flatten, tree_structure, tree_unflatten

from ...errors import CaptureError
from .jax_models import Model
from .marks import Mark, Marking, each_array, is_array, is_key, mark_p

_CONTEXT = jax.make_user_context(None) if hasattr(jax, "make_user_context") else None  # a part of the key of traces
_TRACES = count(1)


class Parts:
    """A pytree as its arrays, which may change, and the rest."""

    def __init__(self, tree: Any) -> None:
        leaves, self._tree = tree_flatten(tree)
        self._is_array = [is_array(leaf) or is_key(leaf) for leaf in leaves]
        self._leaves = [jax.numpy.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]

    @property
    def arrays(self) -> list[Any]:
        return [leaf for leaf, is_one in zip(self._leaves, self._is_array, strict=True) if is_one]

    def whole(self, arrays: Sequence[Any]) -> Any:
        """The tree with these arrays."""
        given = iter(arrays)
        leaves = [next(given) if is_one else leaf for leaf, is_one in zip(self._leaves, self._is_array, strict=True)]
        return tree_unflatten(self._tree, leaves)


class Step:
    """What is computed, as a function of arrays: the forward pass, or the loss with its gradients, too."""

    def __init__(self, model: Model, inputs: Any, loss_fn: Callable[..., Any] | None, target: Any) -> None:
        self.model, self._loss_fn = model, loss_fn
        row = inputs if isinstance(inputs, tuple | list) else (inputs,)
        given = ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(row), {})
        self._inputs, self._target = Parts(given), Parts(target if loss_fn else None)
        args, kwargs = self._inputs.whole(self._inputs.arrays)
        self.inputs: dict[str, Any] = {}  # by port
        names = [*model.arguments, *(f"in.{at}" for at in range(len(model.arguments), len(args)))]
        for port, value in [*zip(names, args, strict=False), *kwargs.items()]:
            each_array(value, port, self.inputs.setdefault)

    @property
    def given(self) -> tuple[Any, Any, list[Any], list[Any]]:
        """All arrays: of the model, trained and held, of the inputs, of the target."""
        return self.model.trained, self.model.held, self._inputs.arrays, self._target.arrays

    def plainly(self) -> Any:
        """The results without marks: outputs, what is held afterwards, loss, gradients."""
        return self._compute(*self.given, marking=None)

    def traced(self) -> tuple[Any, Any, Marking]:
        """The jaxpr with marks, the tree of its results, and the modules' paths."""
        marking = Marking(self.model.names_of)

        def marked(*given: Any) -> Any:
            with marking.tapping(), self.model.marks(marking):
                return self._compute(*given, marking=marking)

        with fresh_traces():
            jaxpr, shape = jax.make_jaxpr(marked, return_shape=True)(*self.given)
        return jaxpr, tree_structure(shape), marking

    def _compute(self, trained: Any, held: Any, inputs: Any, target: Any, *, marking: Marking | None) -> Any:
        loss_fn = self._loss_fn
        if loss_fn is None:
            outputs, after = self._forward(trained, held, inputs, marking)
            return _only_arrays(outputs), after, None, None

        def loss_of(trained: Any) -> Any:
            outputs, after = self._forward(trained, held, inputs, marking)
            read = outputs if marking is None else each_array(outputs, "out", _mark("logits", "lossgrad"))
            loss = loss_fn(read, self._target.whole(target))
            if not is_array(loss) or loss.ndim:
                kind = f"shape {list(loss.shape)}" if is_array(loss) else f"a {type(loss).__qualname__}"
                raise CaptureError(f"loss_fn returned {kind}; return one number, an array of shape []")
            return (loss if marking is None else _mark("loss")("out", loss)), (_only_arrays(outputs), after)

        (loss, (outputs, after)), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
        return outputs, after, loss, gradients

    def _forward(self, trained: Any, held: Any, inputs: Any, marking: Marking | None) -> tuple[Any, Any]:
        args, kwargs = self._inputs.whole(inputs)
        if marking is None or not self.model.is_function:
            return self.model.run(trained, held, args, kwargs)
        after = []

        def function(*args: Any, **kwargs: Any) -> Any:
            outputs, now = self.model.run(trained, held, args, kwargs)
            after.append(now)
            return outputs

        outputs = marking.call(function, 0, "", self.model.title, "{}", args, kwargs)
        return outputs, after[0]


def _mark(phase: str, gradient: str = "") -> Callable[[str, Any], Any]:
    return lambda port, array: mark_p.bind(array, mark=Mark(phase, "loss", port, gradient=gradient))


def fresh_traces() -> AbstractContextManager[Any]:
    """Trace jitted functions anew: those that were traced before have no marks, and ours are nobody else's."""
    if _CONTEXT is None:
        jax.clear_caches()
        return nullcontext()
    found: AbstractContextManager[Any] = _CONTEXT(next(_TRACES))
    return found


def _only_arrays(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf if is_array(leaf) or is_key(leaf) else None, tree)
