"""One implementation, what it is run on, and how: on copies, so that what was given is left as it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from ..capture.tracing import trace
from ..compare.open_trace import open_trace
from ..core.traces import Trace
from ..errors import CaptureError
from .copying import copied_model
from .precise import Lifting, dtype_of, in_dtype


@dataclass(frozen=True, slots=True)
class Side:
    """A model, its inputs, and how a step is made of them. `precise` runs in float64, whatever the model says."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss_fn: Callable[..., torch.Tensor] | None = None
    target: Any = None
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    train: bool = False
    steps: int = 1
    seed: int | None = None
    precise: bool = False
    exact: bool = False  # and without casts to shorter formats
    own: torch.dtype = torch.float32  # which the model was in before it was made precise

    def copied(self) -> nn.Module:
        """The model once more, in the mode that was asked for."""
        model = copied_model(self.model)
        model.zero_grad(set_to_none=True)
        return model.train(self.train)

    def as_precise(self) -> Side:
        """The same side in float64."""
        return replace(
            self, model=in_dtype(copied_model(self.model), torch.float64), args=in_dtype(self.args, torch.float64),
            kwargs=in_dtype(dict(self.kwargs), torch.float64), target=in_dtype(self.target, torch.float64),
            precise=True, own=self.own if self.precise else dtype_of(self.model),
        )  # fmt: skip

    def as_exact(self) -> Side:
        """The same side in float64, without its own casts to shorter formats: what its code means."""
        return replace(self.as_precise(), exact=True)

    def made_optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """An optimizer for a copy of the model, where there are gradients for it."""
        if self.optimizer is None or self.loss_fn is None:
            return None
        made = self.optimizer(model)
        if not isinstance(made, torch.optim.Optimizer):
            raise CaptureError(f"optimizer returned a {type(made).__qualname__}; return the optimizer of the model")
        return made

    def forward(self, model: nn.Module) -> Any:
        """Run a copy of the model on copies of the inputs."""
        args, kwargs = copied_data((self.args, dict(self.kwargs)))
        return model(*args, **kwargs)

    def loss(self, output: Any) -> torch.Tensor:
        """The loss of an output."""
        assert self.loss_fn is not None
        target = copied_data(self.target)
        return self.loss_fn(output) if target is None else self.loss_fn(output, target)

    @contextmanager
    def environment(self) -> Iterator[None]:
        """What has to hold while a side runs: gradients only where they are used, casts lifted where precise."""
        lifting = Lifting(self.own, shorter=self.exact) if self.precise else nullcontext()
        with lifting, torch.set_grad_enabled(self.loss_fn is not None):
            yield

    def begin_step(self) -> None:
        """Every step of every side begins with the same random numbers."""
        if self.seed is not None:
            random.seed(self.seed)
            np.random.seed(self.seed % (1 << 32))  # noqa: NPY002
            torch.manual_seed(self.seed)


def side_of(model: nn.Module, inputs: Any, **options: Any) -> Side:
    """A side whose inputs are given as users give them: a tuple or list of arguments, a dict of keywords, or one."""
    if isinstance(inputs, Mapping):
        return Side(model, (), dict(inputs), **options)
    return Side(model, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}, **options)


def record(side: Side, path: Path, **options: Any) -> Trace:
    """Trace every step of a side, with the options of `trace`."""
    model = side.copied()
    optimizer = side.made_optimizer(model)
    tracing = trace(model, path, optimizer=optimizer, **options)
    with randomness_kept(), side.environment(), tracing as steps:
        for step in range(side.steps):
            if step:
                steps.next_step()
            side.begin_step()
            output = side.forward(model)
            if side.loss_fn is not None:
                side.loss(output).backward()
            if optimizer is not None:
                optimizer.step()
                if step + 1 < side.steps:
                    optimizer.zero_grad(set_to_none=True)
    return open_trace(path)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for what is too small for several: they would wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def copied_data(value: Any) -> Any:
    """Tensors once more, so that a model that writes to its inputs changes nobody's data."""
    return tree_map(lambda item: item.detach().clone() if isinstance(item, torch.Tensor) else item, value)


@contextmanager
def randomness_kept() -> Iterator[None]:
    """Random numbers go on afterwards as if nothing had run."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
